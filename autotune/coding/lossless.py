"""Did speculation change what the model writes? Pure functions on texts.

Two questions. *Garbage*: is a text language at all? A corrupted tree mask writes repetitions,
broken characters or symbol soup, and it does so fast. *Drift*: where does a text part from the
reference's greedy text for the same prompt, and is that earlier than where the reference parts
from itself (A/A)? Batching changes the order of sums, so equal settings part too, but late and
seldom.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

__all__ = [
    "Comparison",
    "Corruption",
    "GarbleKind",
    "GarbleVerdict",
    "Losslessness",
    "character_entropy_bits",
    "corruption",
    "drift_p_value",
    "first_divergence",
    "garble_verdict",
    "losslessness",
    "unique_ngram_ratio",
]

# Windows of 96 words: long enough that tables and test lists of ordinary code stay above the
# limit (the solutions and prompts of the packaged suite have no window below 0.6), short enough
# to see a loop that starts near the end. A loop of period k leaves k distinct 4-grams of 93.
_WINDOW_WORDS = 96
_NGRAM_WORDS = 4
_LEAST_UNIQUE_NGRAMS = 0.2
# The same for texts without spaces ("!!!!!!", "abcabcabc"): 8-grams of characters in windows of
# 256. Rulers ("-----" under a heading) are shorter than a window.
_WINDOW_CHARACTERS = 256
_NGRAM_CHARACTERS = 8
_LEAST_UNIQUE_CHARACTER_NGRAMS = 0.1
# One replacement character at the very end is a character that the token limit cut in two; two
# elsewhere can be quoted. Three are not an accident.
_MOST_REPLACEMENTS = 2
# English and code have 3.4 to 5.3 bits per character, uniform printable ASCII has log2(95) = 6.6.
_LEAST_ENTROPY_BITS = 2.5
_MOST_ENTROPY_BITS = 6.0
_LEAST_ENTROPY_CHARACTERS = 200
# Languages do not change their script from letter to letter.
_MOST_SCRIPT_CHANGES = 0.2
_LEAST_SCRIPT_LETTERS = 40
# Two loops in greedy decoding are more than one unlucky rounding explains.
_LEAST_NEW_REPETITIONS = 2
_ALPHA = 0.02


class GarbleKind(StrEnum):
    """What is wrong with a text."""

    REPETITION = "repetition"
    INVALID_UTF8 = "invalid_utf8"
    ENTROPY = "entropy"
    MIXED_SCRIPTS = "mixed_scripts"


@dataclass(frozen=True, slots=True)
class GarbleVerdict:
    """Whether a text is garbage; `kind` is None and `reason` empty where it is not."""

    kind: GarbleKind | None
    reason: str

    @property
    def garbled(self) -> bool:
        return self.kind is not None


@dataclass(frozen=True, slots=True)
class Corruption:
    """Whether a trial's texts are garbage where the reference's are not.

    Attributes:
        prompts: 0-based indices of the texts that are garbage only in the trial.
        reason: For people; empty when not corrupted.
    """

    corrupted: bool
    prompts: tuple[int, ...]
    reason: str


class Losslessness(StrEnum):
    """The verdict on a trial's texts."""

    LOSSLESS = "lossless"  # parts from the reference no earlier than the reference from itself
    DRIFTING = "drifting"
    CORRUPTED = "corrupted"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the greedy texts of a start compare with those of its host's reference.

    Attributes:
        own: Whether the reference was compared with itself (A/A): the first reference of a host
            answers twice, its repeats are compared with the first.
        positions: Where each text parts from the other, in characters; None where it never does.
        p_value: That the reference parts from itself as early; 1 without anything to compare with.
        reason: Why it is not lossless, for people; empty when it is.
    """

    verdict: Losslessness
    own: bool
    positions: Mapping[str, int | None]
    p_value: float = 1.0
    reason: str = ""


def unique_ngram_ratio(items: Sequence[str], *, n: int) -> float:
    """Distinct n-grams / n-grams; 1 where there are none."""
    grams = [tuple(items[i : i + n]) for i in range(len(items) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def character_entropy_bits(text: str) -> float:
    """Shannon entropy of the characters' frequencies, bits per character; 0 for no text."""
    counts = Counter(text)
    return -sum(c / len(text) * math.log2(c / len(text)) for c in counts.values())


def garble_verdict(text: str) -> GarbleVerdict:
    """The first detector that fires; short texts that fit no detector are not garbage."""
    broken = text.rstrip("\N{REPLACEMENT CHARACTER}").count("\N{REPLACEMENT CHARACTER}")
    broken += sum(0xD800 <= ord(c) <= 0xDFFF or (c < " " and c not in "\t\n\r\f") for c in text)
    if broken > _MOST_REPLACEMENTS:
        reason = f"{broken} characters that are not text"
        return GarbleVerdict(GarbleKind.INVALID_UTF8, reason)
    words = re.findall(r"\w+|[^\w\s]+", text)
    for part in _windows(words, _WINDOW_WORDS):
        ratio = unique_ngram_ratio(part, n=_NGRAM_WORDS)
        if ratio < _LEAST_UNIQUE_NGRAMS:
            reason = f"{ratio:.0%} of the {_NGRAM_WORDS}-grams in a window of words are distinct"
            return GarbleVerdict(GarbleKind.REPETITION, reason)
    for piece in _windows("".join(text.split()), _WINDOW_CHARACTERS):
        ratio = unique_ngram_ratio(piece, n=_NGRAM_CHARACTERS)
        if ratio < _LEAST_UNIQUE_CHARACTER_NGRAMS:
            reason = f"{ratio:.0%} of the {_NGRAM_CHARACTERS}-grams of characters are distinct"
            return GarbleVerdict(GarbleKind.REPETITION, reason)
    if len(text) >= _LEAST_ENTROPY_CHARACTERS:
        bits = character_entropy_bits(text)
        mostly_ascii = sum(c.isascii() for c in text) >= 0.8 * len(text)
        if bits < _LEAST_ENTROPY_BITS or (mostly_ascii and bits > _MOST_ENTROPY_BITS):
            return GarbleVerdict(GarbleKind.ENTROPY, f"{bits:.1f} bits per character")
    changes = _script_changes(text)
    if changes > _MOST_SCRIPT_CHANGES:
        reason = f"the script changes at {changes:.0%} of the letters"
        return GarbleVerdict(GarbleKind.MIXED_SCRIPTS, reason)
    return GarbleVerdict(None, "")


def corruption(reference: Sequence[GarbleVerdict], trial: Sequence[GarbleVerdict]) -> Corruption:
    """Compares the verdicts on the same prompts; garbage that the reference shows too is nothing.

    One text of broken characters or soup is enough. Of repetitions it takes two (one if there is
    only one prompt): greedy decoding falls into loops by itself, and a rounding may tip it.

    Raises: ValueError if the two do not have the same length.
    """
    if len(reference) != len(trial):
        raise ValueError(f"{len(reference)} verdicts of the reference, {len(trial)} of the trial")
    new = [
        index
        for index, (before, now) in enumerate(zip(reference, trial, strict=True))
        if now.garbled and not before.garbled
    ]
    hard = [index for index in new if trial[index].kind is not GarbleKind.REPETITION]
    corrupted = bool(hard) or len(new) >= min(_LEAST_NEW_REPETITIONS, max(1, len(trial)))
    reason = ""
    if corrupted:
        example = (hard or new)[0]
        reason = (
            f"{len(new)} of {len(trial)} texts are garbage and the reference's are not, "
            f"the first at prompt {example}: {trial[example].reason}"
        )
    return Corruption(corrupted, tuple(new), reason)


def first_divergence(reference_text: str, text: str) -> int | None:
    """Index of the first character that differs, or at which one text ends; None if equal."""
    if reference_text == text:
        return None
    for index, (before, now) in enumerate(zip(reference_text, text, strict=False)):
        if before != now:
            return index
    return min(len(reference_text), len(text))


def losslessness(
    own: Sequence[int | None],
    trial: Sequence[int | None],
    *,
    corrupted: bool = False,
    alpha: float = _ALPHA,
) -> Losslessness:
    """The verdict on where texts part; see `drift_p_value`.

    Raises: ValueError if one of the two is empty.
    """
    p_value = drift_p_value(own, trial)
    if corrupted:
        return Losslessness.CORRUPTED
    return Losslessness.DRIFTING if p_value <= alpha else Losslessness.LOSSLESS


def drift_p_value(own: Sequence[int | None], trial: Sequence[int | None]) -> float:
    """Compares where texts part: reference against itself (`own`) and trial against reference.

    None (never parted) ranks behind every position. Exact or tie-corrected one-sided test of
    Mann and Whitney (1947, Annals of Mathematical Statistics 18, 50-60); small where the trial
    parts earlier than chance explains.

    Raises: ValueError if one of the two is empty.
    """
    from scipy.stats import mannwhitneyu

    if not own or not trial:
        raise ValueError("losslessness needs positions of both")
    ours = [math.inf if at is None else float(at) for at in trial]
    theirs = [math.inf if at is None else float(at) for at in own]
    if set(ours) == set(theirs) == {math.inf}:
        return 1.0
    ranks = {value: rank for rank, value in enumerate(sorted({*ours, *theirs}))}
    test = mannwhitneyu(
        [ranks[value] for value in ours], [ranks[value] for value in theirs], alternative="less"
    )
    return float(test.pvalue)


def _windows(items: Sequence[str] | str, size: int) -> list[Sequence[str]]:
    """Half-overlapping windows, the last one flush with the end; none if there is too little."""
    last = len(items) - size
    if last < 0:
        return []
    starts = [*range(0, last, max(1, size // 2)), last]
    return [items[start : start + size] for start in starts]


def _script_changes(text: str) -> float:
    """Changes of script between neighbouring letters / letters; 0 for few letters."""
    scripts = [
        "CJK" if name.startswith(("CJK", "HIRAGANA", "KATAKANA")) else name.split(" ")[0]
        for name in (unicodedata.name(c, "") for c in text if c.isalpha())
    ]
    if len(scripts) < _LEAST_SCRIPT_LETTERS:
        return 0.0
    return sum(a != b for a, b in pairwise(scripts)) / len(scripts)
