"""Coding prompts of an exact length: one set for all trials of a study, none twice in a start.

A prompt is an identifier phrase that no other prompt of its set begins with, a task, background
notes and code (`autotune.prompt_text`), and what to write.  Its length in tokens is the sum of the
counts of its pieces, which the server counted once for the whole library, plus an offset found by
checking two prompts of the bucket.  So making a prompt costs no request, 8192 tokens or not.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from autotune.prompt_text import ASKS, FILLERS, FRAGMENTS, SLOTS, SYLLABLES, TASKS

__all__ = ["PieceCounts", "PromptLibrary", "PromptSet", "TokenCounter", "calibrate", "fit_offset"]

_WORDS = 640
_FRAGMENTS = 640
_FILLERS = 160
_PHRASE_WORDS = 5
_PROBES = 24
# What tokenizers tell apart: words, their letters, numbers, runs of signs, line ends with indents.
_KINDS = ("[A-Za-z]+", "[A-Za-z]", r"\d{1,3}", r"[^\sA-Za-z\d]+", r"\n+ *")


class TokenCounter(Protocol):
    """What a server can say about the length of texts."""

    async def count_tokens(self, texts: Sequence[str]) -> list[int] | None:
        """Tokens of each text alone; None when the server has no tokenizer endpoint."""

    async def prompt_tokens(self, text: str) -> int:
        """Prompt tokens of a request with this text, the chat template's included."""
        ...


@dataclass(frozen=True, slots=True)
class PromptLibrary:
    """The pieces of a study's prompts: the same seed gives the same pieces."""

    words: tuple[str, ...]
    tasks: tuple[str, ...]
    asks: tuple[str, ...]
    fillers: tuple[str, ...]
    fragments: tuple[str, ...]

    @classmethod
    def of_seed(cls, seed: int) -> PromptLibrary:
        rng = random.Random(f"{seed}/library")
        return cls(
            words=_unique(lambda: "".join(rng.sample(SYLLABLES, 3)), _WORDS),
            tasks=_unique(lambda: _fill(rng.choice(TASKS), rng), 64),
            asks=ASKS,
            fillers=_unique(lambda: _fill(rng.choice(FILLERS), rng), _FILLERS),
            fragments=_unique(lambda: _fill(rng.choice(FRAGMENTS), rng), _FRAGMENTS),
        )

    def texts(self) -> list[str]:
        """All pieces as they stand in a prompt, in the order of the fields."""
        return [
            *(f" {word}" for word in self.words),
            *(f" {task}\n\n" for task in self.tasks),
            *self.asks,
            *(f"{filler}\n\n" for filler in self.fillers),
            *(f"{fragment}\n\n" for fragment in self.fragments),
        ]


def _unique(make: Callable[[], str], count: int) -> tuple[str, ...]:
    seen: dict[str, None] = {}
    while len(seen) < count:
        seen[make()] = None
    return tuple(seen)


def _fill(template: str, rng: random.Random) -> str:
    values: dict[str, str | int] = {"n": rng.randint(11, 980), "m": rng.randint(2, 99)}
    for name, choices in SLOTS.items():
        first, second = rng.sample(choices, 2)
        values |= {name: first, f"{name}2": second}
        values |= {name.capitalize(): first.capitalize(), f"{name}2".capitalize(): second.title()}
    return template.format(**values)


@dataclass(frozen=True, slots=True)
class PieceCounts:
    """Tokens of each piece of a library by one server's tokenizer.

    Attributes:
        tokens: shape (n_pieces,), in the order of `PromptLibrary.texts`.
        overhead_tokens: What the chat template adds to a prompt.
        exact: Whether the server counted the pieces; otherwise they are estimated.
    """

    tokens: tuple[float, ...]
    overhead_tokens: float
    exact: bool


async def calibrate(library: PromptLibrary, counter: TokenCounter) -> PieceCounts:
    """Counts the library once for a server start.

    With a tokenizer endpoint: one call for all pieces and one request of one token, which shows
    what the template adds.  Without: `_PROBES` requests of one token, from which the tokens of a
    word, a letter, a number, a sign and a line follow by least squares, and the template's share.
    """
    texts = library.texts()
    counted = await counter.count_tokens(texts)
    if counted is not None:
        probe = _probe_text(library, 8, salt=0)
        alone = await counter.count_tokens([probe])
        if alone is not None:
            overhead = await counter.prompt_tokens(probe) - alone[0]
            return PieceCounts(tuple(map(float, counted)), float(overhead), exact=True)
    probes = [_probe_text(library, 2 + salt % 5, salt=salt) for salt in range(_PROBES)]
    seen = await asyncio.gather(*(counter.prompt_tokens(probe) for probe in probes))
    rows = np.array([[*_features(probe), 1.0] for probe in probes])
    solution, *_ = np.linalg.lstsq(rows, np.array(seen, dtype=np.float64), rcond=None)
    estimates = np.array([_features(text) for text in texts]) @ solution[:-1]
    return PieceCounts(tuple(np.maximum(estimates, 1.0).tolist()), float(solution[-1]), exact=False)


def _probe_text(library: PromptLibrary, fragments: int, *, salt: int) -> str:
    rng = random.Random(f"probe/{fragments}/{salt}")
    phrase = " ".join(rng.sample(library.words, _PHRASE_WORDS))
    return f"{phrase}\n\n" + "\n\n".join(rng.sample(library.fragments, fragments))


def _features(text: str) -> list[float]:
    """How often each of `_KINDS` occurs in the text; shape (5,)."""
    return [float(len(re.findall(kind, text))) for kind in _KINDS]


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one bucket: `text(index)` for any index from 0 on.

    Attributes:
        seed: The study's seed.
        key: The bucket's key and the round, `1024x8/0`: every round has fresh prompts.
        context_tokens: Length aimed at, tokens, the template's included.
        offset_tokens: Correction found by `fit_offset`: seen length minus estimated length.
    """

    seed: int
    key: str
    context_tokens: int
    prompt_library: PromptLibrary
    counts: PieceCounts
    offset_tokens: float = 0.0
    _first: tuple[int, ...] = field(init=False, repr=False)
    _at: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        order = list(range(len(self.prompt_library.words)))
        random.Random(f"{self.seed}/{self.key}/first").shuffle(order)
        object.__setattr__(self, "_first", tuple(order))
        sizes = (
            *(
                len(self.prompt_library.words),
                len(self.prompt_library.tasks),
                len(self.prompt_library.asks),
            ),
            len(self.prompt_library.fillers),
        )
        object.__setattr__(self, "_at", tuple(itertools.accumulate(sizes)))

    def text(self, index: int) -> str:
        """The prompt with this index; negative ones are kept for checks and never measured."""
        return self._compose(index)[0]

    def estimated_tokens(self, index: int) -> float:
        """Its length by the counts, tokens, without the offset."""
        return self._compose(index)[1]

    def texts(self) -> Iterator[str]:
        """The prompts from index 0 on, without end."""
        return map(self.text, itertools.count())

    def _compose(self, index: int) -> tuple[str, float]:
        rng = random.Random(f"{self.seed}/{self.key}/{index}")
        library, tokens = self.prompt_library, self.counts.tokens
        at_task, at_ask, at_filler, at_fragment = self._at
        words = [self._first[index % len(self._first)]]
        words += rng.sample(range(len(library.words)), _PHRASE_WORDS - 1)
        task, ask = rng.randrange(len(library.tasks)), rng.randrange(len(library.asks))
        phrase = " ".join(library.words[word] for word in words).capitalize()
        parts = [f"{phrase}: {library.tasks[task]}\n\n"]
        total = self.counts.overhead_tokens + sum(tokens[word] for word in words)
        total += tokens[at_task + task] + tokens[at_ask + ask]
        room = self.context_tokens - self.offset_tokens - total
        for chosen in self._choose(rng, room):
            total += tokens[chosen]
            piece = chosen - at_fragment
            body = library.fragments[piece] if piece >= 0 else library.fillers[chosen - at_filler]
            parts.append(f"{body}\n\n")
        parts.append(library.asks[ask])
        return "".join(parts), total

    def _choose(self, rng: random.Random, room: float) -> Iterator[int]:
        """Pieces that fill `room` tokens: fragments without repeats while they last, then lines."""
        tokens = self.counts.tokens
        _, _, at_filler, at_fragment = self._at
        everything = range(at_fragment, len(tokens))
        largest = max(tokens[at_fragment:])
        while room > largest:
            for piece in rng.sample(everything, len(everything)):
                if room <= largest:
                    break
                room -= tokens[piece]
                yield piece
        # The closest fit: what may be left is less than half of the shortest line.
        for piece in (
            *rng.sample(everything, min(32, len(everything))),
            *rng.sample(range(at_filler, at_fragment), at_fragment - at_filler),
        ):
            if tokens[piece] <= room + 1:
                room -= tokens[piece]
                yield piece


async def fit_offset(prompts: PromptSet, counter: TokenCounter) -> PromptSet:
    """The same set, its length corrected by a check of prompts that are never measured.

    Two where the server counted the pieces; more where they are estimated and scatter.
    """
    checks = range(-1, -3, -1) if prompts.counts.exact else range(-1, -7, -1)
    texts = [prompts.text(index) for index in checks]
    alone = await counter.count_tokens(texts) if prompts.counts.exact else None
    if alone is not None:
        seen = [count + prompts.counts.overhead_tokens for count in alone]
    else:
        seen = [float(n) for n in await asyncio.gather(*map(counter.prompt_tokens, texts))]
    off = [
        count - prompts.estimated_tokens(index) for count, index in zip(seen, checks, strict=True)
    ]
    return replace(prompts, offset_tokens=prompts.offset_tokens + sum(off) / len(off))
