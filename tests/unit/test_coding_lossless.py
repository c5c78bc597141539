"""Garbage detectors, the decision on corruption, and drift."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from autotune.coding.lossless import (
    GarbleKind,
    GarbleVerdict,
    Losslessness,
    character_entropy_bits,
    corruption,
    first_divergence,
    garble_verdict,
    losslessness,
    unique_ngram_ratio,
)
from autotune.coding.suite import load_suite

CLEAN = GarbleVerdict(None, "")
LOOP = GarbleVerdict(GarbleKind.REPETITION, "a loop")
BROKEN = GarbleVerdict(GarbleKind.INVALID_UTF8, "broken")
PROSE = (
    "The function walks through the list once, remembers for every key the place where it was "
    "seen last, and moves the left edge of the window behind that place whenever the key comes "
    "back. Each element enters and leaves the window at most once, so the time is linear. "
)


def _soup(alphabet: str, length: int) -> str:
    chance = random.Random(3)
    return "".join(chance.choice(alphabet) for _ in range(length))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("def f(x):\n    return x\n" * 30, GarbleKind.REPETITION),
        (PROSE + "and then the the the " * 40, GarbleKind.REPETITION),
        ("!" * 600, GarbleKind.REPETITION),
        ("\u6211\u4eec" * 300, GarbleKind.REPETITION),
        (PROSE + "\ufffd\ufffd and \ufffd then", GarbleKind.INVALID_UTF8),
        (PROSE + "\x00\x01\x02", GarbleKind.INVALID_UTF8),
        (PROSE + "\udc80\udc81\udc82", GarbleKind.INVALID_UTF8),
        (_soup("".join(map(chr, range(33, 127))), 900), GarbleKind.ENTROPY),
        (_soup("ab", 150) + " " * 100, GarbleKind.ENTROPY),
        (_soup("abc\u0431\u0432\u0433\u4f60\u597d\u05d0\u05d1", 190), GarbleKind.MIXED_SCRIPTS),
    ],
)
def test_garbage_is_named(text: str, kind: GarbleKind) -> None:
    verdict = garble_verdict(text)
    assert verdict.kind is kind
    assert verdict.reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ok",
        PROSE,
        PROSE + "\ufffd",
        "Title\n" + "-" * 79 + "\n" + PROSE,
        "table = [\n"
        + "".join(f"    ({n}, {n * n % 97}, {n * 7 % 31}),\n" for n in range(60))
        + "]",
        "\u8fd9\u4e2a\u51fd\u6570\u904d\u5386\u5217\u8868\u5e76\u8fd4\u56de\u7ed3\u679c\u3002" * 2,
    ],
)
def test_language_and_code_are_not_garbage(text: str) -> None:
    assert garble_verdict(text) == CLEAN


def test_nothing_in_the_packaged_suite_is_garbage() -> None:
    for task in load_suite(Path(__file__).parents[2] / "objectives/coding"):
        for text in (task.prompt, task.solution, task.near_miss):
            assert not garble_verdict(text).garbled, task.name


def test_measures() -> None:
    assert unique_ngram_ratio(["a", "b", "a", "b"], n=2) == pytest.approx(2 / 3)
    assert unique_ngram_ratio(["a"], n=2) == 1.0
    assert character_entropy_bits("abab") == pytest.approx(1.0)
    assert character_entropy_bits("") == 0.0


def test_garbage_counts_only_where_the_reference_is_clean() -> None:
    assert not corruption([BROKEN, CLEAN], [BROKEN, CLEAN]).corrupted
    found = corruption([CLEAN, CLEAN], [CLEAN, BROKEN])
    assert found.corrupted
    assert found.prompts == (1,)
    assert "prompt 1" in found.reason


def test_one_loop_is_not_enough_but_two_are() -> None:
    one = corruption([CLEAN] * 4, [LOOP, CLEAN, CLEAN, CLEAN])
    assert (one.corrupted, one.prompts, one.reason) == (False, (0,), "")
    assert corruption([CLEAN] * 4, [LOOP, CLEAN, LOOP, CLEAN]).corrupted
    assert corruption([CLEAN], [LOOP]).corrupted
    assert not corruption([LOOP, LOOP], [LOOP, LOOP]).corrupted
    assert not corruption([], []).corrupted


def test_verdicts_must_be_of_the_same_prompts() -> None:
    with pytest.raises(ValueError, match="verdicts"):
        corruption([CLEAN], [])


@pytest.mark.parametrize(
    ("before", "now", "at"),
    [
        ("same", "same", None),
        ("", "", None),
        ("abc", "abd", 2),
        ("abc", "ab", 2),
        ("", "x", 0),
        ("\U0001f600a", "\U0001f600b", 1),
    ],
)
def test_first_divergence(before: str, now: str, at: int | None) -> None:
    assert first_divergence(before, now) == at


def test_parting_no_earlier_than_the_reference_from_itself_is_lossless() -> None:
    own = [None] * 30 + [400, 900, 1300]
    assert losslessness(own, own) is Losslessness.LOSSLESS
    assert losslessness([None] * 8, [None] * 8) is Losslessness.LOSSLESS
    assert losslessness([3] * 12, [None] * 12) is Losslessness.LOSSLESS


def test_parting_earlier_is_drift_and_garbage_is_corruption() -> None:
    own = [None] * 30 + [400, 900, 1300]
    early = [12] * 20 + [None] * 13
    assert losslessness(own, early) is Losslessness.DRIFTING
    assert losslessness(own, own, corrupted=True) is Losslessness.CORRUPTED
    with pytest.raises(ValueError, match="positions"):
        losslessness([], [1])
