"""Stands in for SGLang's kernel package, which has no build for a plain CPU.

Only the host-side bookkeeping that the engine imports by name when it runs on CPU, in plain torch.
No torch operator is registered, so the engine finds no CPU kernels and takes its own torch paths.
What only EAGLE uses is importable and refuses to run.
"""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn

import torch

__version__ = "0.0.0+stub"


def assign_req_to_token_pool_cpu(
    requests: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    slots: torch.Tensor,
    *_: Any,
) -> None:
    """Write each request's new cache slots into its row of the table."""
    at = 0
    for row, first, last in zip(requests.tolist(), start.tolist(), end.tolist(), strict=True):
        table[row, first:last] = slots[at : at + last - first].to(table.dtype)
        at += last - first


def assign_extend_cache_locs_cpu(
    requests: torch.Tensor,
    table: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    slots: torch.Tensor,
    *_: Any,
) -> None:
    """Read the slots of each request's new tokens from the table, one request after another."""
    at = 0
    for row, first, last in zip(requests.tolist(), start.tolist(), end.tolist(), strict=True):
        slots[at : at + last - first] = table[row, first:last].to(slots.dtype)
        at += last - first


def fill_bonus_tokens_cpu(
    accepted: torch.Tensor, lengths: torch.Tensor, bonus: torch.Tensor, stride: int
) -> None:
    """The last accepted token of each request, of rows of `stride` tokens."""
    count = lengths.numel()
    at = torch.arange(count) * stride + lengths.reshape(-1).long() - 1
    bonus.reshape(-1)[:count] = accepted.reshape(-1)[at].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, slots: torch.Tensor, accepted_slots: torch.Tensor
) -> None:
    """The slots of the accepted tokens, those with an index of -1 left out."""
    at = accept_index.reshape(-1)
    at = at[at >= 0].long()
    accepted_slots[: at.numel()] = slots[at]


def copy_all_layer_kv_cache_cpu(
    buffers: torch.Tensor, row_bytes: torch.Tensor, to: torch.Tensor, source: torch.Tensor
) -> None:
    """Move rows of every buffer; all are read before the first is written, since they may overlap.

    Args:
        buffers, row_bytes: Address of each buffer and the bytes of one of its rows.
    """
    moves = [(a, b) for a, b in zip(to.tolist(), source.tolist(), strict=True) if a != b]
    for address, size in zip(buffers.tolist(), row_bytes.tolist(), strict=True):
        rows = [ctypes.string_at(address + b * size, size) for _, b in moves]
        for (a, _), row in zip(moves, rows, strict=True):
            ctypes.memmove(address + a * size, row, size)


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    **_: Any,
) -> None:
    """Walk each request's tree along the target's greedy tokens.

    A node's first child is `retrive_next_token`, the child after it `retrive_next_sibling`; -1 is
    none.  Results are written into the first three; the bonus token is not counted.  The engine
    gives all by name, so the names are its own.
    """
    greedy = target_predict.reshape(-1).tolist()
    drafted, at = candidates.tolist(), retrive_index.tolist()
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    for request in range(candidates.shape[0]):
        node, accepted = 0, 0
        last = at[request][0]
        accept_index[request, 0] = last
        while accepted + 1 < accept_index.shape[1]:
            child = children[request][node]
            while child != -1 and drafted[request][child] != greedy[last]:
                child = siblings[request][child]
            if child == -1:
                break
            predicts[last] = greedy[last]
            node, last = child, at[request][child]
            accepted += 1
            accept_index[request, accepted] = last
        accept_token_num[request] = accepted
        predicts[last] = greedy[last]


def _refuse(*_: Any) -> NoReturn:
    raise NotImplementedError("only EAGLE uses this; it does not run with the stubs")


assign_draft_cache_locs_contiguous_cpu = _refuse
build_tree_kernel_efficient_cpu = _refuse
build_draft_decode_metadata_cpu = _refuse
