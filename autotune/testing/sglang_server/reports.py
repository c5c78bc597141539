"""What the server says about itself."""

from __future__ import annotations

import time
from typing import Any

from autotune.testing.sglang_server.args import ServerArgs
from autotune.testing.sglang_server.engine import Engine
from autotune.testing.sglang_server.faults import Fault
from autotune.testing.sglang_server.lifecycle import Lifecycle
from autotune.testing.sglang_server.switches import LogStyle, Switches

__all__ = ["Reports"]

_THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
_UPDATABLE = (*_THRESHOLDS, "pp_max_micro_batch_size")


class Reports:
    """`/v1/models`, `/model_info` and `/server_info` of one server."""

    def __init__(
        self, args: ServerArgs, switches: Switches, engine: Engine, lifecycle: Lifecycle
    ) -> None:
        self._args = args
        self._switches = switches
        self._engine = engine
        self._lifecycle = lifecycle
        self._state = dict(args.fields)

    def models(self) -> dict[str, Any]:
        """The model list; it is answered while draining, too."""
        args = self._args
        card = {
            "id": args.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": args.model,
            "parent": None,
            "max_model_len": args.context_tokens,
        }
        return {"object": "list", "data": [card]}

    def model_info(self) -> dict[str, Any]:
        """Static facts of the model and the nonce."""
        fields = self._args.fields
        return {
            "model_path": fields["model_path"],
            "served_model_name": self._args.model,
            "tokenizer_path": fields["tokenizer_path"],
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self._args.weight_version,
            "load_format": fields["load_format"],
            "reasoning_parser": fields["reasoning_parser"],
            "tool_call_parser": fields["tool_call_parser"],
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "kimi_k25",
            "architectures": ["KimiK25ForConditionalGeneration"],
        }

    def server_info(self) -> dict[str, Any]:
        """Every argument, the scheduler's limits and its state; keys stand in it in clear."""
        args, engine, style = self._args, self._engine, self._switches.log_style
        info: dict[str, Any] = dict(args.fields)
        if style is LogStyle.NEW:
            info["launch_command"] = " ".join(["sglang", "serve", *args.argv])
            info["status"] = "ready" if self._lifecycle.ready else "starting"
        info |= {
            "max_total_num_tokens": engine.kv_tokens,
            "max_req_input_len": args.context_tokens - 6,
            "internal_states": [self._internal_state()],
            "version": style.value,
        }
        return info

    def set_internal_state(self, wanted: object) -> tuple[bool, float | None]:
        """Change what may be changed while serving, and start the accept length anew.

        Returns:
            Whether anything was accepted, and the accept length before.
        """
        if not isinstance(wanted, dict) or not wanted or not set(wanted) <= set(_UPDATABLE):
            return False, None
        self._state |= wanted
        if self._switches.log_style is LogStyle.NEW and not set(wanted) & set(_THRESHOLDS):
            return True, self._engine.counters.accept_length
        return True, self._engine.reset_accept_length()

    def _internal_state(self) -> dict[str, Any]:
        engine, surface = self._engine, self._engine.surface
        setting = self._args.setting
        state = self._state | {
            "last_gen_throughput": engine.counters.gen_throughput,
            "memory_usage": {
                "weight": surface.weights_gib,
                "kvcache": round(engine.kv_tokens * surface.kv_gib_per_token, 2),
                "token_capacity": engine.kv_tokens,
                "graph": round(surface.tree_gib(setting), 2),
            },
            "effective_max_running_requests_per_dp": setting.max_running_requests,
        }
        length = engine.counters.accept_length
        if length is not None and Fault.NO_ACCEPT_LOG not in self._switches.faults:
            state["avg_spec_accept_length"] = length
        return state
