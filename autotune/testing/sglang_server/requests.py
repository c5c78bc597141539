"""One generation request inside the engine."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.testing.sglang_server.answers import Answer

__all__ = ["FinishKind", "GenerationRequest", "Sampling"]


class FinishKind(StrEnum):
    """Why an answer ended."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the client asked for.

    Attributes:
        max_new_tokens: Most output tokens.
        ignore_eos: Whether the answer goes on behind its natural end.
        stop: Texts at which the answer ends; they are not part of it.
        temperature: Kept for the record; the answers are deterministic.
    """

    max_new_tokens: int
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    temperature: float = 0.0


class GenerationRequest:
    """A request from its arrival to its last token.

    The engine calls `advance`; the connection waits in `changed` and reads `text` and the counts.

    Args:
        prompt_ids: Tokens of the prompt.
        answer: What will be written.
        sampling: What the client asked for.
        streaming: For the metrics' label only.
        probe: A health check or warm-up, not counted among the generated requests.
    """

    __slots__ = (
        "_changed", "answer", "arrived_at", "cached_tokens", "completion_tokens", "finish",
        "finished_at", "first_token_at", "matched_stop", "output_pieces", "probe", "prompt_ids",
        "rid", "sampling", "started_at", "streaming", "survivals", "text", "verify_count",
    )  # fmt: skip

    def __init__(
        self,
        prompt_ids: Sequence[int],
        answer: Answer,
        sampling: Sampling,
        *,
        streaming: bool = False,
        probe: bool = False,
        rid: str = "",
    ) -> None:
        self.rid = rid or uuid.uuid4().hex
        self.prompt_ids = prompt_ids
        self.answer = answer
        self.sampling = sampling
        self.streaming = streaming
        self.probe = probe
        self.text = ""
        self.output_pieces: list[str] = []
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.verify_count = 0
        self.survivals: tuple[float, ...] = ()
        self.finish: FinishKind | None = None
        self.matched_stop: str | None = None
        self.arrived_at = time.monotonic()
        self.started_at = 0.0
        self.first_token_at = 0.0
        self.finished_at = 0.0
        self._changed = asyncio.Event()

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def limit_tokens(self) -> int:
        """Output tokens at which the answer ends if no stop text comes before."""
        most = self.sampling.max_new_tokens
        return most if self.sampling.ignore_eos else min(most, self.answer.length_tokens)

    @property
    def ended(self) -> bool:
        return self.finish is not None

    @property
    def visible(self) -> str:
        """Text that may be sent: an end that could become a stop text is held back."""
        if self.finish is not None or not self.sampling.stop:
            return self.text
        held = max(map(len, self.sampling.stop)) - 1
        return self.text[: max(0, len(self.text) - held)] if held else self.text

    def advance(self, tokens: int) -> int:
        """Write up to `tokens` tokens and return how many were written."""
        tokens = min(tokens, self.limit_tokens - self.completion_tokens)
        fresh = self.answer.take(tokens)
        self.output_pieces.extend(fresh)
        self.text += "".join(fresh)
        self.completion_tokens += tokens
        if self.sampling.stop:
            self._stop_at_text()
        if self.finish is None and self.completion_tokens >= self.limit_tokens:
            natural = not self.sampling.ignore_eos and (
                self.completion_tokens >= self.answer.length_tokens
            )
            self.finish = FinishKind.STOP if natural else FinishKind.LENGTH
        return tokens

    def notify(self) -> None:
        """Wake the connection."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait for new tokens or the end."""
        await self._changed.wait()
        self._changed.clear()

    async def finished(self) -> None:
        """Wait for the end."""
        while self.finish is None:
            await self.changed()

    def abort(self) -> None:
        """End the request without an answer."""
        if self.finish is None:
            self.finish = FinishKind.ABORT
            self.notify()

    def _stop_at_text(self) -> None:
        found = [(at, stop) for stop in self.sampling.stop if (at := self.text.find(stop)) >= 0]
        if found:
            at, self.matched_stop = min(found)
            self.text = self.text[:at]
            self.finish = FinishKind.STOP
