from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from autotune.prompts import PieceCounts, PromptLibrary, PromptSet, calibrate, fit_offset

TOKEN = re.compile(r" ?[A-Za-z]{1,5}|\d{1,3}| ?[^\s\w]+|\n+|\s|_")
LIBRARY = PromptLibrary.of_seed(7)


@dataclass
class Tokenizer:
    """A server that counts; `endpoint` whether it has a tokenizer endpoint."""

    endpoint: bool = True
    template_tokens: int = 11
    probes: int = 0

    def count(self, text: str) -> int:
        return len(TOKEN.findall(text))

    async def count_tokens(self, texts: Sequence[str]) -> list[int] | None:
        return [self.count(text) for text in texts] if self.endpoint else None

    async def prompt_tokens(self, text: str) -> int:
        self.probes += 1
        return self.count(text) + self.template_tokens


def prompt_set(tokenizer: Tokenizer, context_tokens: int, *, key: str = "b/0") -> PromptSet:
    async def build() -> PromptSet:
        counts = await calibrate(LIBRARY, tokenizer)
        return await fit_offset(PromptSet(7, key, context_tokens, LIBRARY, counts), tokenizer)

    return asyncio.run(build())


def counted(text: str) -> float:
    return float(Tokenizer().count(text))


COUNTS = PieceCounts(tuple(map(counted, LIBRARY.texts())), 11.0, exact=True)


@pytest.mark.parametrize("context_tokens", [60, 250, 1024, 4096, 8192, 65536])
def test_length_is_exact_by_the_servers_count(context_tokens: int) -> None:
    tokenizer = Tokenizer()
    prompts = prompt_set(tokenizer, context_tokens)
    for text in itertools.islice(prompts.texts(), 20):
        seen = tokenizer.count(text) + tokenizer.template_tokens
        assert abs(seen - context_tokens) <= max(8, 0.02 * context_tokens)


def test_length_without_a_tokenizer_endpoint_comes_from_probes() -> None:
    tokenizer = Tokenizer(endpoint=False)
    prompts = prompt_set(tokenizer, 8192)
    assert 0 < tokenizer.probes <= 40
    assert not prompts.counts.exact
    seen = [tokenizer.count(prompts.text(i)) + tokenizer.template_tokens for i in range(20)]
    assert all(abs(length - 8192) <= 0.02 * 8192 for length in seen)


def test_a_tokenizer_endpoint_costs_one_generation_a_start() -> None:
    tokenizer = Tokenizer()
    prompt_set(tokenizer, 1024)
    assert tokenizer.probes == 1


def test_the_same_seed_gives_the_same_set_and_another_seed_another() -> None:
    again = PromptLibrary.of_seed(7)
    one = PromptSet(7, "1024x8/0", 1024, LIBRARY, COUNTS)
    two = PromptSet(7, "1024x8/0", 1024, again, COUNTS)
    other = PromptSet(8, "1024x8/0", 1024, again, COUNTS)
    assert [one.text(i) for i in range(5)] == [two.text(i) for i in (0, 1, 2, 3, 4)]
    assert one.text(3) != other.text(3)
    assert again != PromptLibrary.of_seed(8)


def test_a_prompt_does_not_depend_on_those_before_it() -> None:
    prompts = PromptSet(7, "1024x8/0", 1024, LIBRARY, COUNTS)
    assert list(itertools.islice(prompts.texts(), 4))[3] == prompts.text(3)


def test_no_two_prompts_of_a_start_begin_alike() -> None:
    sets = [
        PromptSet(7, key, 300, LIBRARY, COUNTS)
        for key in ("60x1/0", "1024x8/0", "1024x8/1", "8192x64/0")
    ]
    texts = [prompts.text(index) for prompts in sets for index in range(-2, 300)]
    assert len({text.partition(":")[0] for text in texts}) == len(texts)
    assert len({sets[0].text(index).split()[0] for index in range(600)}) == 600


def test_no_piece_comes_twice_while_there_are_others() -> None:
    prompts = PromptSet(7, "8192x1/0", 8192, LIBRARY, COUNTS)
    pieces = prompts.text(0).split("\n\n")
    assert len(set(pieces)) == len(pieces)
    assert len(pieces) > 50
