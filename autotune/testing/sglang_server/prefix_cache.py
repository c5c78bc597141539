"""Which part of a prompt the server has computed before: a radix tree in blocks of tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["PrefixCache"]

_BLOCK_TOKENS = 32


class PrefixCache:
    """Longest known prefix of a token sequence, at the granularity of a page.

    A node is a full block of tokens under the hash of everything before it; the last tokens of a
    match are found by comparing with the blocks that are known at that place.

    Args:
        page_size: Tokens of a page; a match is cut down to whole pages.
        capacity_tokens: The oldest blocks are forgotten beyond this.
    """

    def __init__(self, *, page_size: int = 1, capacity_tokens: int = 1_000_000) -> None:
        self._page_size = page_size
        self._capacity = capacity_tokens
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], None] = OrderedDict()
        self._children: dict[int, list[tuple[int, ...]]] = {}
        self._tokens = 0

    @property
    def tokens(self) -> int:
        """Tokens that are held."""
        return self._tokens

    def match(self, ids: Sequence[int]) -> int:
        """Tokens of the longest known prefix; at least one token is left to compute."""
        known, place = 0, 0
        while known < len(ids):
            block = tuple(ids[known : known + _BLOCK_TOKENS])
            if len(block) == _BLOCK_TOKENS and (place, block) in self._blocks:
                known += _BLOCK_TOKENS
                place = hash((place, block))
                continue
            known += max((_common(block, b) for b in self._children.get(place, ())), default=0)
            break
        known = min(known, len(ids) - 1)
        return max(0, known - known % self._page_size)

    def insert(self, ids: Sequence[int]) -> None:
        """Remember a sequence."""
        place, path = 0, []
        for start in range(0, len(ids), _BLOCK_TOKENS):
            block = tuple(ids[start : start + _BLOCK_TOKENS])
            key = (place, block)
            if key not in self._blocks:
                self._blocks[key] = None
                self._children.setdefault(place, []).append(block)
                self._tokens += len(block)
            path.append(key)
            place = hash(key)
        for key in reversed(path):  # a parent stays newer than its children
            self._blocks.move_to_end(key)
        while self._tokens > self._capacity:
            (place, block), _ = self._blocks.popitem(last=False)
            self._children[place].remove(block)
            if not self._children[place]:
                del self._children[place]
            self._tokens -= len(block)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._children.clear()
        self._tokens = 0


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return position
    return min(len(left), len(right))
