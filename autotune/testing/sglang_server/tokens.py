"""A small deterministic tokenizer: every text is cut into pieces and joined back without loss."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["ASSISTANT_TAIL", "chat_text", "decode", "encode", "pieces"]

_PIECE = re.compile(
    r"\n| ?[^\W\d_]{1,6}|\d{1,3}|[^\S\n]{1,4}| ?[^\w\s]{1,3}|_{1,4}|.",
    re.DOTALL,
)
ASSISTANT_TAIL = "<|im_assistant|>assistant<|im_middle|>"


def pieces(text: str) -> list[str]:
    """Cut a text; no piece holds a line end beside other characters."""
    return _PIECE.findall(text)


def encode(text: str) -> list[int]:
    """Token ids: the bytes of each piece after a leading 1, so that `decode` needs no table."""
    return [
        int.from_bytes(b"\x01" + piece.encode("utf-8", "surrogatepass")) for piece in pieces(text)
    ]


def decode(ids: Iterable[int]) -> str:
    """The text of token ids.

    Raises:
        ValueError: An id is none of ours.
    """
    parts = []
    for token in ids:
        raw = token.to_bytes((token.bit_length() + 7) // 8) if token > 0 else b""
        if raw[:1] != b"\x01":
            raise ValueError(f"token id {token} is not in the vocabulary")
        parts.append(raw[1:].decode("utf-8", "surrogatepass"))
    return "".join(parts)


def chat_text(messages: Sequence[tuple[str, str]]) -> str:
    """The prompt of a chat: role and content of each message, then the assistant's turn."""
    turns = (f"<|im_{role}|>{role}<|im_middle|>{content}<|im_end|>" for role, content in messages)
    return "".join(turns) + ASSISTANT_TAIL
