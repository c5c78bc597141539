"""Secrets leave this program masked.

`server_info` and the `server_args=` log line of SGLang hold `api_key` and `admin_api_key` in clear.
Everything that comes from an engine passes through here before it is kept or shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

__all__ = ["MASK", "is_secret_name", "mask_text", "masked", "masked_words"]

MASK = "***"

_SHORTEST_SECRET = 4
"""Literal secrets shorter than this are not searched for: they would match half of every line."""

_SECRET_PARTS = ("secret", "password", "passwd", "credential", "apikey", "authorization")
_SECRET_KEYS = frozenset({"api", "access", "private", "auth", "encryption", "signing"})
_NOT_SECRET = frozenset(
    {
        "speculative_token_map",
        "bos_token",
        "eos_token",
        "mask_token",
        "pad_token",
        "unk_token",
    }
)

# `api_key='...`, `"api_key": "...`, also inside of another quoted text (`\"api_key\": \"...`).
_HEAD = re.compile(
    r"""(?<![\w-])(?P<name>[A-Za-z_][\w-]*)\\*['"]?\s*[=:]\s*[bBrRuU]?\\*(?P<quote>['"])"""
)
_QUOTED = {quote: re.compile(rf"(?:\\.|[^\\{quote}])*", re.DOTALL) for quote in ("'", '"')}
_BARE_PAIR = re.compile(r"""(?<![\w-])(?P<name>[A-Za-z_][\w-]*)=(?P<value>[^\s'",;)}\]]+)""")
_OPTION = re.compile(
    r"""(?<![\w-])--?(?P<name>[A-Za-z][\w-]*)(?P<mid>=|\s+|['"],\s*['"])(?P<value>[^\s'",]+)"""
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]+")
_HARMLESS = re.compile(r"None|True|False|null|[-+]?[\d.]+(?:[eE][-+]?\d+)?")
_CAMEL = re.compile(r"([a-z0-9])([A-Z])")


def is_secret_name(name: str) -> bool:
    """Whether a setting, variable or flag of this name holds a secret.

    `token` counts as a whole word only: `tokenizer_path` and `max_total_tokens` are no secrets.
    """
    plain = _CAMEL.sub(r"\1_\2", name).lower().replace("-", "_").strip("_")
    if plain in _NOT_SECRET:
        return False
    if any(part in plain.replace("_", "") for part in _SECRET_PARTS):
        return True
    words = plain.split("_")
    if "token" in words:
        return True
    return any(second == "key" and first in _SECRET_KEYS for first, second in pairwise(words))


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """A log line or message without secrets.

    Args:
        text: Any text; a cut-off quoted value is masked up to the end.
        secrets: Values that are known to be secret, masked wherever they stand.
    """
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    text = _mask_quoted(text)
    text = _OPTION.sub(_mask_option, text)
    text = _BARE_PAIR.sub(_mask_bare, text)
    return _BEARER.sub(rf"\1 {MASK}", text)


def masked(mapping: Mapping[str, object], secrets: Iterable[str] = ()) -> dict[str, object]:
    """A copy without secrets: text under a secret name is masked, at any depth.

    None and empty text stay, so that "no key is set" can still be seen.
    """
    known = tuple(secrets)
    return {name: _masked_value(value, known, name=name) for name, value in mapping.items()}


def masked_words(words: Iterable[str], secrets: Iterable[str] = ()) -> tuple[str, ...]:
    """A command line without secrets: the word after an option that names one is masked."""
    shown = masked({"words": list(words)}, secrets)["words"]
    return tuple(shown) if isinstance(shown, list) else ()


def _masked_value(value: object, secrets: tuple[str, ...], *, name: str) -> object:
    if isinstance(value, Mapping):
        return {
            key: _masked_value(inner, secrets, name=name if is_secret_name(name) else str(key))
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        items: list[object] = []
        before = name
        for item in value:
            items.append(
                _masked_value(item, secrets, name=name if is_secret_name(name) else before)
            )
            # A command line as a list of words: the word after `--api-key` is the key.
            before = item.lstrip("-") if isinstance(item, str) else ""
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, str) and value:
        return MASK if is_secret_name(name) else mask_text(value, secrets)
    return value


def _mask_quoted(text: str) -> str:
    pieces: list[str] = []
    done = 0
    for head in _HEAD.finditer(text):
        if head.start() < done or not is_secret_name(head["name"]):
            continue
        value = _QUOTED[head["quote"]].match(text, head.end())
        if value is None or not value[0]:
            continue
        pieces += [text[done : head.end()], MASK]
        done = value.end()
    return "".join([*pieces, text[done:]])


def _mask_option(match: re.Match[str]) -> str:
    value = match["value"]
    if not is_secret_name(match["name"]) or (value.startswith("-") and match["mid"].isspace()):
        return match[0]
    return match[0][: match.start("value") - match.start()] + MASK


def _mask_bare(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or _HARMLESS.fullmatch(match["value"]):
        return match[0]
    return f"{match['name']}={MASK}"
