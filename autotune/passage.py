"""How the words of a unit become the words of the process that reads them.

::

    direct      python -m sglang.launch_server --f 8     the process shows the same words
    script      /opt/serve --f 8                         `#!` puts an interpreter in front
    launcher    numactl -m 0 python ... --f 8            executes the rest, and is not shown
    wrapper     /opt/serve.sh --f 8                      ends with `exec python ... "$@"`
    shell       bash -c 'cd /srv && exec python ...'     the words are in the script

Which of them it is, is not guessed from texts: the running process decides.  What fits none of them
is refused, because then no command line could be proved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autotune.errors import UnitRefused
from autotune.shell_words import last_command, rewritten, script_index
from autotune.supervisors.base import Passage, Word

__all__ = ["edited", "find_passage", "read_words", "same_words", "shown"]

Change = Callable[[tuple[Word, ...]], tuple[Word, ...]]

_UNKNOWN = "\0"
"""Stands for a word that only a shell knows: no real word holds a NUL."""


def edited(argv: tuple[Word, ...], passage: Passage, change: Change) -> tuple[Word, ...]:
    """A unit's words with a change made to the words that the engine reads.

    Raises:
        UnitRefused: They stand in a script that cannot be changed safely.
    """
    if not passage.shell:
        return change(argv)
    at = script_index([word.text for word in argv])
    if at is None:
        raise UnitRefused("the command line is no `sh -c` any more")
    script = rewritten(argv[at].text, change)
    if script == argv[at].text:
        return argv
    return (*argv[:at], replace(argv[at], text=script), *argv[at + 1 :])


def read_words(argv: tuple[Word, ...], passage: Passage) -> tuple[Word, ...]:
    """The words that the engine reads, as they stand in the unit."""
    seen: list[Word] = []

    def look(words: tuple[Word, ...]) -> tuple[Word, ...]:
        seen.extend(words)
        return words

    edited(argv, passage, look)
    return tuple(seen)


def shown(words: Sequence[str], passage: Passage, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the kernel must show of a process that was started with these words.

    Args:
        words: Words that the service manager executes, its variables replaced.
        environ: Environment of the process.
    """
    base = _base(words, environ) if passage.shell else tuple(words)
    return (*passage.before, *base[passage.dropped :])


def find_passage(words: Sequence[str], live: Sequence[str], environ: Mapping[str, str]) -> Passage:
    """How `words` became `live`.

    Args:
        words: Words that the service manager executes, its variables replaced.
        live: Command line of the running process; empty when it does not run: then the words
            themselves are expected.

    Raises:
        UnitRefused: In no way that can be proved.
    """
    shell = script_index(words) is not None
    base = _base(words, environ) if shell else tuple(words)
    live = tuple(live)
    if not live or live == base:
        return Passage(shell=shell)
    if live[0] in base:  # the rest was executed by a launcher, or nothing was in between
        dropped = base.index(live[0])
        if live == base[dropped:]:
            return Passage(dropped=dropped, shell=shell)
        if shell and script_index(live) is not None:
            raise _shell_stays()
        raise _another(base, live)
    if shell and os.path.basename(live[0]) == os.path.basename(words[0]):
        raise _shell_stays()
    names = [os.path.basename(word) for word in live[:4]]
    program = os.path.basename(base[0])
    if program in names:  # a script, behind the interpreter that its first line names
        at = names.index(program)
        if live[at + 1 :] == base[1:]:
            same = live[at] == base[0]
            kept = 0 if same else 1
            return Passage(before=live[: at + kept], dropped=kept, shell=shell)
        raise _another(base, live)
    for dropped in (1, 2):  # a wrapper script, or a shell that was given one
        rest = base[dropped:]
        if rest and len(live) > len(rest) and live[-len(rest) :] == rest:
            return Passage(before=live[: -len(rest)], dropped=dropped, shell=shell)
    raise UnitRefused(
        f"{base[0]} starts the server with a command line of its own: what ExecStart gives it is "
        "not what the server gets",
        hint='let it end with `exec` and the server\'s command, "$@" behind it, and write the '
        "flags behind its name in ExecStart; or start the server itself there",
    )


def same_words(wanted: Sequence[str], seen: Sequence[str]) -> bool:
    """Whether a process shows these words: as they are, or behind the interpreter of a script.

    The kernel puts the words of a script's first line in front (execve(2), "Interpreter scripts").
    """
    prefix = len(seen) - len(wanted)
    return bool(wanted) and prefix >= 0 and tuple(seen[prefix:]) == tuple(wanted)


def _base(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Words of the last command of a `sh -c` script."""
    at = script_index(words)
    if at is None:
        return tuple(words)
    found = last_command(words[at], environ)
    return tuple(
        text for word in found for text in (word.texts if word.texts is not None else (_UNKNOWN,))
    )


def _shell_stays() -> UnitRefused:
    return UnitRefused(
        "the shell of ExecStart stays the main process, so the server's command line cannot be "
        "proved",
        hint="write `exec` before the server's command",
    )


def _another(base: Sequence[str], live: Sequence[str]) -> UnitRefused:
    if _UNKNOWN in base:
        return UnitRefused(
            "the shell script in ExecStart makes words that only the shell knows",
            hint="write the server's arguments as plain words",
        )
    return UnitRefused(
        f"what runs was started from another command line than the unit has now: "
        f"{_difference(base, live)}",
        hint="restart the service, or put the unit back, so that it is known what to go back to",
    )


def _difference(base: Sequence[str], live: Sequence[str]) -> str:
    for at in range(1, min(len(base), len(live)) + 1):
        if base[-at] != live[-at]:
            return f"{live[-at]!r} runs, {base[-at]!r} is written"
    return f"{len(live)} words run, {len(base)} are written"
