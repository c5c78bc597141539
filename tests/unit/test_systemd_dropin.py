"""The drop-in as text, and what systemd makes of `$`."""

from __future__ import annotations

import pytest

from autotune.errors import UnitRefused
from autotune.supervisors.base import Launch, Word
from autotune.systemd.dropin import dropin_path, held_argv, mask_path, quote, render
from autotune.systemd.expand import expand, split_words
from autotune.systemd.facts import ExecCommand

SERVER = ExecCommand("/opt/bin/python", ("/opt/bin/python",), frozenset())


def body(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_the_whole_file() -> None:
    words = (Word("/opt/bin/python"), Word("$ARGS"), Word("100%"), Word('{"a": "$x"}', ours=True))
    text = render(Launch(words, {"B": "2", "A": "x y%"}), SERVER)
    assert body(text) == [
        "[Service]",
        "ExecStart=",
        r'ExecStart="/opt/bin/python" "$ARGS" "100%%" "{\"a\": \"$$x\"}"',
        'Environment="A=x y%%"',
        'Environment="B=2"',
    ]
    assert text.startswith("# Written by autotune")


def test_prefixes_and_another_title_are_kept() -> None:
    flags = frozenset({"ignore-failure", "no-env-expand", "privileged"})
    command = ExecCommand("/bin/python", ("server",), flags)
    launch = Launch((Word("server"), Word("$a", ours=True)))
    assert body(render(launch, command))[2] == 'ExecStart=-:+@"/bin/python" "server" "$a"'
    assert held_argv(launch, expands=False) == ("server", "$a")


@pytest.mark.parametrize(("flag", "sign"), [("no-setuid", "!"), ("ambient", "!!")])
def test_signs_of_privilege(flag: str, sign: str) -> None:
    command = ExecCommand("/bin/x", ("/bin/x",), frozenset({flag}))
    assert body(render(Launch((Word("/bin/x"),)), command))[2] == f'ExecStart={sign}"/bin/x"'


def test_another_program_replaces_the_path() -> None:
    launch = Launch((Word("/new/python", ours=True),))
    assert body(render(launch, SERVER))[2] == 'ExecStart="/new/python"'


def test_only_our_dollars_are_doubled() -> None:
    launch = Launch((Word("a"), Word("$A"), Word("$A", ours=True)))
    assert held_argv(launch, expands=True) == ("a", "$A", "$$A")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("", '""'),
        ("%n", '"%%n"'),
        ("a\nb\tc\r", r'"a\nb\tc\r"'),
        ("\x01\x7f", r'"\x01\x7f"'),
        ('\\"', r'"\\\""'),
        ("naïve ☃", '"naïve ☃"'),
        (";", '";"'),
    ],
)
def test_quoting(word: str, text: str) -> None:
    assert quote(word) == text


@pytest.mark.parametrize("word", ["a\0b", "\udcff"])
def test_what_no_unit_file_can_hold(word: str) -> None:
    with pytest.raises(UnitRefused, match="cannot be written"):
        quote(word)


def test_no_words_and_no_names() -> None:
    with pytest.raises(UnitRefused, match="at least one word"):
        render(Launch(()), SERVER)
    with pytest.raises(UnitRefused, match="no name"):
        render(Launch((Word("a"),), {"A B": "1"}), SERVER)


def test_paths() -> None:
    assert dropin_path("a@b.service") == "/run/systemd/system/a@b.service.d/zzzz-autotune.conf"
    assert mask_path("a@b.service") == "/etc/systemd/system/a@b.service.d/zzzz-autotune.conf"


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("$A", ["one", "two words"]),
        ("${A}", ['one "two words"']),
        ("x${B}y", ["xby"]),
        ("x$B", ["x$B"]),
        ("$NONE", []),
        ("x${NONE}y", ["xy"]),
        ("$B/x", []),
        ("$$A", ["$A"]),
        ("a$$b$", ["a$b$"]),
        ("${B", ["${B"]),
        ("${B:-x}", ["${B:-x}"]),
        ("${A:${B}", ["${A:b"]),
        ("$", []),
        ("plain", ["plain"]),
        ("${MAX}-${}", ["8-"]),
        ("${MAX", ["${MAX"]),
    ],
)
def test_expansion(word: str, wanted: list[str]) -> None:
    assert expand(["p", word], {"A": 'one "two words"', "B": "b", "MAX": "8"}) == ("p", *wanted)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  a\tb\n", ["a", "b"]),
        ("''", [""]),
        ("a'b c'd", ["ab cd"]),
        (r"a\ b", ["a b"]),
        (r'"a\"b"', ['a"b']),
        ("'open", ["open"]),
        ("a\\", ["a"]),
        ("'a' b \"c\" d", ["a", "b", "c", "d"]),
        ("XaX b", ["XaX", "b"]),
        ("a\\'b \"c'd\" e", ["a'b", "c'd", "e"]),
    ],
)
def test_splitting(text: str, words: list[str]) -> None:
    assert split_words(text) == words
