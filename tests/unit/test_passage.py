"""How the words of a unit become those of a process: what the kernel shows decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UnitRefused
from autotune.passage import edited, find_passage, read_words, same_words, shown
from autotune.shell_words import last_command, rewritten, script_index
from autotune.supervisors.base import Passage, Word

ENGINE = ("python", "-m", "sglang.launch_server", "--port", "30000")


def words(*texts: str) -> tuple[Word, ...]:
    return tuple(Word(text) for text in texts)


@pytest.mark.parametrize(
    ("unit", "live", "passage"),
    [
        (ENGINE, ENGINE, Passage()),
        (ENGINE, (), Passage()),
        (("numactl", "-m", "0", *ENGINE), ENGINE, Passage(dropped=3)),
        (("/s/serve", "--f"), ("/bin/sh", "/s/serve", "--f"), Passage(("/bin/sh",))),
        (("sglang", "serve"), ("/py", "/b/sglang", "serve"), Passage(("/py", "/b/sglang"), 1)),
        (("/s/run", "--f", "8"), (*ENGINE, "--f", "8"), Passage(ENGINE, 1)),
        (("bash", "/s/run", "--f", "8"), (*ENGINE, "--f", "8"), Passage(ENGINE, 2)),
        (("bash", "-c", f"cd / && exec {' '.join(ENGINE)}"), ENGINE, Passage(shell=True)),
        (("sh", "-ec", "nice -n 1 python s.py"), ("python", "s.py"), Passage((), 3, shell=True)),
    ],
)
def test_the_process_decides(
    unit: tuple[str, ...], live: tuple[str, ...], passage: Passage
) -> None:
    found = find_passage(unit, live, {})
    assert found == passage
    assert shown(unit, found, {}) == (live or unit)


@pytest.mark.parametrize(
    ("unit", "live", "sentence"),
    [
        (ENGINE, (*ENGINE[:4], "30001"), "another command line.*'30001' runs"),
        (("numactl", *ENGINE), (*ENGINE, "--more"), "another command line"),
        (("/s/run",), ENGINE, "command line of its own"),
        (("/s/run", "--f", "8"), (*ENGINE, "--f", "9"), "command line of its own"),
        (("bash", "-c", "python s.py; echo"), ("bash", "-c", "python s.py; echo"), "shell"),
        (("/b/sglang", "serve", "--a"), ("/py", "/b/sglang", "serve", "--b"), "another"),
    ],
)
def test_what_cannot_be_proved_is_refused(
    unit: tuple[str, ...], live: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(UnitRefused, match=f"(?s){sentence}"):
        find_passage(unit, live, {})


def test_only_the_words_of_the_script_change_and_keep_their_quotes() -> None:
    script = "cd /srv;\n# why\nexec python s.py --a 'x y' --b 8  # now"

    def change(seen: tuple[Word, ...]) -> tuple[Word, ...]:
        assert [word.text for word in seen] == ["python", "s.py", "--a", "x y", "--b", "8"]
        return (*seen[:-1], Word("9 ", ours=True), Word("--c", ours=True))

    argv = words("bash", "-lc", script, "name")
    result = edited(argv, Passage(shell=True), change)
    assert result[2].text == "cd /srv;\n# why\nexec python s.py --a 'x y' --b '9 ' --c  # now"
    assert (result[:2], result[3:]) == (argv[:2], argv[3:])
    assert shown([word.text for word in result], Passage(shell=True), {})[-3:] == (
        "--b",
        "9 ",
        "--c",
    )
    assert edited(argv, Passage(shell=True), lambda seen: seen) is argv
    assert [word.text for word in read_words(argv, Passage())] == [word.text for word in argv]


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("exec a 'b c' \"d $X\" e\\ f", ["a", "b c", "d x y", "e f"]),
        ("a $X b", ["a", "x", "y", "b"]),
        ('a "$X"b ${NONE} ""', ["a", "x yb", ""]),
        ("A=1 B='2 3' exec a", ["a"]),
        ("ulimit -n 9; . /v/activate && a \\\n  b # c", ["a", "b"]),
        ("x | y; exec a", ["a"]),
        ("a '#' b#c", ["a", "#", "b#c"]),
        ('a "\\$X \\a"', ["a", "$X \\a"]),
    ],
)
def test_a_script_is_read_as_a_shell_reads_it(script: str, seen: list[str]) -> None:
    found = last_command(script, {"X": "x y"})
    assert [text for word in found for text in word.texts or ()] == seen
    assert all(word.texts is not None for word in found)
    assert rewritten(script, lambda words: words).startswith(script[: found[0].start])


@pytest.mark.parametrize(
    "script",
    ["a | b", "a &", "a > /log", "a 2>&1", "( a )", "if a; then b; fi", "a || b", "a 'b", "",
     "exec -a name b", "x=1", "for i in 1; do a; done", 'a "b'],
)  # fmt: skip
def test_what_is_more_than_a_list_is_refused(script: str) -> None:
    with pytest.raises(UnitRefused, match="shell script in ExecStart"):
        last_command(script, {})


@pytest.mark.parametrize("word", ["`id`", "$(id)", "*.py", "${X:-1}", "~/x", "$1", "a{b,c}"])
def test_words_that_only_a_shell_knows_fit_no_process(word: str) -> None:
    with pytest.raises(UnitRefused):
        find_passage(("sh", "-c", f"exec python {word}"), ("python", "anything"), {})


@given(st.lists(st.text(st.sampled_from("ab $'\"\\#;&|<>()*~`\n"), min_size=1), min_size=1))
def test_words_that_we_write_come_back(texts: list[str]) -> None:
    texts = [text for text in texts if "$" not in text] or ["x"]
    script = rewritten("exec a", lambda seen: (*seen, *(Word(t, ours=True) for t in texts)))
    assert [word.texts for word in last_command(script, {})] == [("a",), *((t,) for t in texts)]


def test_a_dollar_of_ours_would_be_read_by_systemd() -> None:
    with pytest.raises(UnitRefused, match=r"'\$HOME' cannot be written"):
        rewritten("exec a", lambda seen: (*seen, Word("$HOME", ours=True)))


@pytest.mark.parametrize(
    ("argv", "at"),
    [
        (("bash", "-c", "x"), 2),
        (("/bin/bash", "-o", "pipefail", "-lc", "x"), 4),
        (("sh", "--login", "-c", "x", "name"), 3),
        (("bash", "/s.sh", "-c"), None),
        (("python", "-c", "x"), None),
        ((), None),
    ],
)
def test_where_the_script_of_a_shell_stands(argv: tuple[str, ...], at: int | None) -> None:
    assert script_index(argv) == at


def test_a_script_is_shown_behind_its_interpreter() -> None:
    assert same_words(("/s", "--f"), ("/bin/sh", "/s", "--f"))
    assert same_words(("/s",), ("/s",))
    assert not same_words(("/s", "--f"), ("/s", "--g"))
    assert not same_words((), ())
