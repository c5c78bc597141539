"""Words of commands: quoting and secrets."""

from __future__ import annotations

import pickle
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import CommandError
from autotune.remote.command import Masked, plain, shell_line, shown
from autotune.remote.connector import Completed, LineSplitter

WORD = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=30, deadline=None)
@given(words=st.lists(WORD, min_size=1, max_size=5))
def test_a_shell_gives_the_words_back(words: list[str]) -> None:
    line = shell_line(["printf", r"%s\0", *words])
    output = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True).stdout
    assert output.decode().split("\0")[:-1] == words


def test_a_secret_is_sent_and_never_shown() -> None:
    words: list[str | Masked] = ["curl", Masked("s3cret")]
    assert plain(words) == ["curl", "s3cret"]
    assert shell_line(words) == "curl s3cret"
    assert shown(words) == ("curl", "***")
    assert "s3cret" not in repr(words)
    assert "s3cret" not in str(CommandError(shown(words), 1, "refused"))
    assert plain([pickle.loads(pickle.dumps(words[1]))]) == ["s3cret"]


def test_a_word_with_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        shell_line(["printf", "a\0b"])


def test_a_status_other_than_0_is_an_error_only_when_asked() -> None:
    completed = Completed(("false",), 3, b"", b"no\xff such unit\n")
    assert completed.stderr_tail == "no\ufffd such unit"
    with pytest.raises(CommandError, match="status 3: no") as seen:
        completed.checked(hint="do that")
    assert seen.value.hint == "do that"
    assert Completed(("true",), 0, b"yes\n", b"").checked().text == "yes\n"


@given(
    lines=st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_lines_come_whole_however_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    text = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(limit_bytes=10)
    position = 0
    for cut in [*sorted(cuts), len(text)]:
        splitter.feed(text[position:cut])
        position = max(position, cut)
    seen = []
    while (line := splitter.pop()) is not None:
        seen.append(line)
    assert seen == [line[:10] for line in lines]
