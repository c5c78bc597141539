"""What systemd makes of `$` in a command line when it starts the service.

The rules of systemd.service(5), "Command lines", as `replace_env_argv` of systemd's src/basic/
env-util.c does them:

- a word that is `$NAME` and nothing else becomes the words of the value (none when it is unset);
- `${NAME}` inside a word becomes the value, as it is;
- `$$` becomes `$`; every other `$` stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["expand", "split_words"]

_BLANKS = " \t\n\r"


def expand(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The argument vector of the started process.

    Args:
        words: Words as systemd holds them (D-Bus), `argv[0]` included.
        environ: Environment of the started process.
    """
    expanded: list[str] = []
    for word in words:
        if word.startswith("$") and not word.startswith(("${", "$$")):
            expanded.extend(split_words(environ.get(word[1:], "")))
        else:
            expanded.append(_replace(word, environ))
    return tuple(expanded)


def split_words(text: str) -> list[str]:
    """Split the value of a variable: blanks separate, quotes join, a backslash takes the next
    character as it is; an unclosed quote ends with the text."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    characters = iter(text)
    for character in characters:
        if word is None:
            if character in _BLANKS:
                continue
            word = ""
        if character == "\\":
            word += next(characters, "")
        elif quote:
            if character == quote:
                quote = ""
            else:
                word += character
        elif character in "'\"":
            quote = character
        elif character in _BLANKS:
            words.append(word)
            word = None
        else:
            word += character
    if word is not None:
        words.append(word)
    return words


def _replace(word: str, environ: Mapping[str, str]) -> str:
    pieces: list[str] = []
    position = 0
    while (dollar := word.find("$", position)) >= 0:
        pieces.append(word[position:dollar])
        following = word[dollar + 1 : dollar + 2]
        position = dollar + 2
        if following == "$":
            pieces.append("$")
        elif following == "{":
            while position < len(word) and word[position] not in "}:":
                position += 1
            if word[position : position + 1] == "}":
                pieces.append(environ.get(word[dollar + 2 : position], ""))
                position += 1
            else:  # no end, or `${NAME:...}`, which units do not know
                pieces.append(word[dollar:position])
        else:
            pieces.append(word[dollar:position])
    pieces.append(word[position:])
    return "".join(pieces)
