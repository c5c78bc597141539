"""Lets the unmodified SGLang serve NGRAM and DFLASH on a plain CPU.

Python loads this file by itself at every start with this folder in PYTHONPATH.  Nothing on disk is
changed; five modules are adjusted right after they were imported:

- torchvision: two operators are declared that only its compiled part would declare;
- the choices of the draft's attention backend: `torch_native` is one;
- the check of the speculative algorithm: DFLASH may run on device `cpu`;
- the `torch_native` attention: it learns to verify drafted tokens, chain or tree;
- the DFLASH worker and model: no CUDA streams, no CUDA kernel for norm and rotation.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any


def _declare_torchvision_operators() -> None:
    from torch import library

    for name in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(f"torchvision::{name}", schema)


def _allow_backend(module: ModuleType) -> None:
    module.add_draft_attention_backend_choices(["torch_native"])


def _allow_dflash(module: ModuleType) -> None:
    platform = module.current_platform

    class Platform:
        """The engine's own platform; an addition of ours as far as speculation goes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(platform, name)

        def is_out_of_tree(self) -> bool:
            return True

        def supports_speculative_algorithm(self, algorithm: str) -> bool:
            return True

        def supports_speculative_draft_attention_backend(self, algorithm: str, name: str) -> bool:
            return name == "torch_native"

        def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
            return "torch_native"

    module.current_platform = Platform()


def _teach_verification(module: ModuleType) -> None:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    backend = module.TorchNativeAttnBackend
    plain = backend.forward_extend

    def tree_mask(spec: Any) -> torch.Tensor | None:
        """The mask of the whole batch, None where the drafted tokens are a chain."""
        mask = getattr(spec, "custom_mask", None)
        if mask is None or not mask.numel() or getattr(spec, "tree_topk", 1) == 1:
            return None
        return mask.reshape(-1).bool()

    def forward_extend(
        self: Any,
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        if not forward_batch.forward_mode.is_target_verify():
            return plain(self, q, k, v, layer, forward_batch, save_kv_cache)
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            where = module.KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
            pool.set_kv_buffer(layer, where, k, v)
        batch, heads = forward_batch.batch_size, layer.tp_q_head_num
        queries = q.view(batch, -1, heads, layer.qk_head_dim)
        drafted = queries.shape[1]
        keys = pool.get_key_buffer(layer.layer_id)
        values = pool.get_value_buffer(layer.layer_id)
        causal = layer.attn_type != module.AttentionType.ENCODER_ONLY
        window = layer.sliding_window_size
        tree = tree_mask(forward_batch.spec_info)
        out = torch.empty(batch * drafted, heads, layer.v_head_dim, dtype=q.dtype)
        read = 0
        for request in range(batch):
            length = int(forward_batch.seq_lens[request])
            total = length + drafted
            row = forward_batch.req_pool_indices[request]
            slots = self.req_to_token_pool.req_to_token[row, :total]
            seen = torch.ones(drafted, total, dtype=torch.bool)
            if tree is not None and tree.numel() == batch * drafted * drafted:
                size = drafted * drafted
                own = tree[request * size : (request + 1) * size]
                seen[:, length:] = own.view(drafted, drafted)
            elif tree is not None:
                seen = tree[read : read + drafted * total].view(drafted, total)
                read += drafted * total
            elif causal:
                seen[:, length:] = seen[:, length:].tril()
            if causal and window is not None and window >= 0:
                at = torch.arange(length, total).unsqueeze(1)
                seen = seen & (torch.arange(total).unsqueeze(0) >= at - window)
            answer = scaled_dot_product_attention(
                queries[request].movedim(0, 1).unsqueeze(0),
                keys[slots].movedim(0, 1).unsqueeze(0).to(q.dtype),
                values[slots].movedim(0, 1).unsqueeze(0).to(q.dtype),
                attn_mask=seen,
                scale=layer.scaling,
                enable_gqa=heads != layer.tp_k_head_num,
            )
            first = request * drafted
            out[first : first + drafted] = answer.squeeze(0).movedim(1, 0)
        return out.view(batch * drafted, heads * layer.v_head_dim)

    backend.forward_extend = forward_extend


def _ignore_streams(module: ModuleType) -> None:
    import torch

    real = torch.Tensor.record_stream

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if self.device.type != "cpu":
            real(self, stream)

    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign]


def _avoid_kernel(module: ModuleType) -> None:
    never = property(lambda self: False, lambda self, value: None)
    for one in vars(module).values():
        own = isinstance(one, type) and one.__module__ == module.__name__
        if own and one.__name__.endswith("Attention"):
            one.use_table_qk_norm_rope = never


_AFTER = {
    "sglang.srt.arg_groups.choices": _allow_backend,
    "sglang.srt.arg_groups.speculative_hook": _allow_dflash,
    "sglang.srt.layers.attention.torch_native_backend": _teach_verification,
    "sglang.srt.models.dflash": _avoid_kernel,
    "sglang.srt.speculative.dflash_worker_v2": _ignore_streams,
}


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each module of `_AFTER` as soon as it was imported."""

    def __init__(self) -> None:
        self._done: set[str] = set()

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in self._done:
            return None
        if name == "torchvision":
            self._done.add(name)
            _declare_torchvision_operators()
            return None
        if name not in _AFTER:
            return None
        self._done.add(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _AFTER[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AfterImport())
