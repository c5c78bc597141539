"""How a unit's words become a process's (one piece: one reader); what the kernel shows decides."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given, settings
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


@pytest.mark.parametrize(
    ("unit", "live", "passage"),
    [
        # A launcher's own words are gone, those after the program are the unit's.
        (("nice", "-n", "5", "/s/run", "-a"), ("/s/run", "-a"), Passage(dropped=3)),
        # The interpreter is named with the first line's own option.
        (("/s/run", "-a"), ("/usr/bin/env", "-S", "bash", "/s/run", "-a"),
         Passage(("/usr/bin/env", "-S", "bash"))),
        # env finds the script on the path.
        (("run", "-a"), ("bash", "/s/run", "-a"), Passage(("bash", "/s/run"), 1)),
        (("/s/run", "-a", "1"), ("python", "/v/bin/other", "-a", "1"),
         Passage(("python", "/v/bin/other"), 1)),
        (("sh", "/s/run", "-a", "1"), ("python", "-a", "1"), Passage(("python",), 2)),
        (("bash", "-c", "exec run -a"), ("sh", "/s/run", "-a"),
         Passage(("sh", "/s/run"), 1, shell=True)),
        (("bash", "-c", "exec /s/run -a"), ("python", "other", "-a"),
         Passage(("python", "other"), 1, shell=True)),
    ],
)  # fmt: skip
def test_more_ways_from_a_unit_to_its_process(
    unit: tuple[str, ...], live: tuple[str, ...], passage: Passage
) -> None:
    found = find_passage(unit, live, {})
    assert found == passage
    assert shown(unit, found, {}) == live


SHELL_STAYS = (
    "the shell of ExecStart stays the main process, so the server's command line cannot be proved"
)


HINTS = {
    "the shell of": "write `exec` before the server's command",
    "what runs": "restart the service, or put the unit back, so that it is known what to go back "
    "to",
    "the shell script": "write the server's arguments as plain words",
    "/s/run starts": 'let it end with `exec` and the server\'s command, "$@" behind it, and write '
    "the flags behind its name in ExecStart; or start the server itself there",
}
"""What is said to do, by how the message begins."""


@pytest.mark.parametrize(
    ("unit", "live", "message"),
    [
        # The script has no `exec` (the shell is still there), or starts another shell.
        (("bash", "-c", "python s.py"), ("bash", "-c", "python s.py"), SHELL_STAYS),
        (("/bin/bash", "-c", "python s.py"), ("bash", "/tmp/x"), SHELL_STAYS),
        (("bash", "-c", "exec sh -c 'x'"), ("sh", "-c", "y"), SHELL_STAYS),
        (
            ("python", "s.py", "--a", "1"),
            ("python", "s.py", "--a", "2"),
            "what runs was started from another command line than the unit has now: "
            "'2' runs, '1' is written",
        ),
        (
            ("python", "s.py", "--a", "1"),
            ("python", "--a", "1"),
            "what runs was started from another command line than the unit has now: "
            "'python' runs, 's.py' is written",
        ),
        (
            ("nice", "python", "--a"),
            ("python", "nice", "python", "--a"),
            "what runs was started from another command line than the unit has now: "
            "4 words run, 3 are written",
        ),
        (
            ("/s/run", "--a"),
            ("sh", "/s/run", "--b"),
            "what runs was started from another command line than the unit has now: "
            "'--b' runs, '--a' is written",
        ),
        (
            ("sh", "-c", "exec python *.py"),
            ("python", "a.py", "b.py"),
            "the shell script in ExecStart makes words that only the shell knows",
        ),
        (
            ("/s/run", "--a"),
            ("a", "b", "c", "d", "/s/run", "--b"),
            "/s/run starts the server with a command line of its own: what ExecStart gives it is "
            "not what the server gets",
        ),
        (
            ("/s/run",),
            ("python", "s.py"),
            "/s/run starts the server with a command line of its own: what ExecStart gives it is "
            "not what the server gets",
        ),
    ],
)
def test_why_a_passage_cannot_be_proved(
    unit: tuple[str, ...], live: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UnitRefused) as caught:
        find_passage(unit, live, {})
    assert caught.value.message == message
    assert [caught.value.hint] == [
        hint for begins, hint in HINTS.items() if message.startswith(begins)
    ]


def test_a_script_without_a_shell_cannot_be_changed() -> None:
    argv = words("python", "s.py")
    with pytest.raises(UnitRefused, match="is no `sh -c` any more"):
        edited(argv, Passage(shell=True), lambda seen: seen)
    # What the kernel shows of such words is asked of the words themselves.
    assert shown(("python", "s.py"), Passage(shell=True), {}) == ("python", "s.py")


def test_what_a_process_shows_has_the_values_of_its_variables() -> None:
    unit = ("bash", "-c", "exec python s.py --a $A", "name")
    live = ("python", "s.py", "--a", "8")
    assert find_passage(unit, live, {"A": "8"}) == Passage(shell=True)
    assert shown(unit, Passage(shell=True), {"A": "8"}) == live
    with pytest.raises(UnitRefused, match="'8' runs, '9' is written"):
        find_passage(unit, live, {"A": "9"})


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


ENVIRONMENT = {"X": "x y", "ONE": "1", "NONE": "", "TAB": "a\tb\nc"}
PIECES = st.sampled_from(
    ["a", "b-c", "é", "=", "b#", " ", "  ", "\t", "\\ ", "\\a", "\\$", "\\\\", "\\\n", "'a b'",
     "'$X\\'", "''", "$X", "${X}", "$ONE", "${ONE}b", "$NONE", "$TAB", "$MISSING", '""', '"', '"',
     '"a b"', '"$X"', '"${TAB} "', '"\\$X \\\\ \\a \\" \\`"', '"a\\\nb"', '" \' "', ",", ":", "%",
     "@", "^", "+"]
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.lists(PIECES, max_size=8), st.sampled_from(["", " # c"]))
def test_words_are_those_of_a_real_shell(pieces: list[str], comment: str) -> None:
    script = "exec a " + "".join(pieces) + comment
    real = subprocess.run(
        ["sh", "-c", 'set -- "$0" ' + script[7:] + "\nprintf '%s\\0' \"$@\"", "a"],
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    try:
        found = last_command(script, ENVIRONMENT)
    except UnitRefused as error:
        assert "quote is not closed" in error.message  # noqa: PT017
        assert real.returncode != 0
        return
    assert real.returncode == 0
    if all(word.texts is not None for word in found):
        seen = [text for word in found for text in word.texts or ()]
        assert seen == real.stdout.decode().split("\0")[:-1]
    assert "".join(script[word.start : word.end] for word in found) == "".join(w.raw for w in found)


@pytest.mark.parametrize(
    "word",
    ["$", "`id`", "*.py", "a?", "[ab]", "${X:-1}", "~/x", "$1", "$?", "a{b,c}", '"`id`"', '"$(id)"',
     '"${X:-1}"', "$GLOB", "$LEFT", "$RIGHT", "$BACK", "a$"],
)  # fmt: skip
def test_a_word_that_only_a_shell_knows_has_no_text(word: str) -> None:
    environ = {"GLOB": "a*", "LEFT": " a", "RIGHT": "a ", "BACK": "a\\b", "X": "x"}
    before, odd, after = last_command(f"exec a {word} c", environ)
    assert (before.texts, odd.texts, after.texts) == (("a",), None, ("c",))
    assert odd.raw == word


def test_a_name_that_goes_on_behind_a_continued_line_is_not_cut() -> None:
    """`$X\\` and `a` on the next line is `$Xa` (XCU 2.2.1)."""
    environ = {"X": "x", "Xa": "y"}
    for script in ("a $X\\\na", 'a "$X\\\na"', "a $X\\\n\\\na"):
        assert last_command(script, environ)[1].texts is None
    for script in ("a $X\\\n b", "a ${X}\\\n\tb", "a $X\\\n;"):
        assert last_command(script, environ)[1].texts == ("x",)
    assert last_command("a ${X}\\\na", environ)[1].texts == ("xa",)
    assert last_command("a $X\\\n-a", environ)[1].texts == ("x-a",)


def test_plain_letters_are_known() -> None:
    (word,) = last_command("X_0.9+-,:@%^=/é", {})
    assert word.texts == ("X_0.9+-,:@%^=/é",)
    (word,) = last_command('"a$NONE"', {"NONE": ""})
    assert word.texts == ("a",)


def test_quotes_keep_what_a_shell_would_match_or_split() -> None:
    found = last_command('a \'*?[~{}`\' "*?[~{}" \\* "$GLOB"', {"GLOB": " a* "})
    assert [word.texts for word in found] == [("a",), ("*?[~{}`",), ("*?[~{}",), ("*",), (" a* ",)]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("a | b", "its last command follows '|'"),
        ("a || b", "its last command follows '||'"),
        ("a &", "its last command is followed by '&'"),
        ("a & # c\n", "its last command is followed by '&'"),
        ("a |", "its last command is followed by '|'"),
        ("a > /log", "the output or input of its last command is redirected"),
        ("a >> /log b", "the output or input of its last command is redirected"),
        ("a 2>&1", "the output or input of its last command is redirected"),
        ("a <", "the output or input of its last command is redirected"),
        ("( a )", "it has brackets"),
        ("( a", "it has brackets"),
        ("a )", "it has brackets"),
        ("f() a", "it has brackets"),
        ("if a; then b; fi", "it has 'if'"),
        ("x; { a", "it has '{'"),
        ("# note\nwhile x; do y\ndone\nexec z", "it has 'while'"),
        ("a 'b", "a quote is not closed"),
        ('a "b', "a quote is not closed"),
        ("exec -a name b", "`exec -a` gives the program another name"),
        ("", "it has no last command"),
        ("# a", "it has no last command"),
        ("x=1", "it has no last command"),
        ("exec", "it has no last command"),
        ("PATH+=:/x exec", "it has no last command"),
    ],
)
def test_why_a_script_is_refused(script: str, why: str) -> None:
    with pytest.raises(UnitRefused) as caught:
        last_command(script, {})
    assert caught.value.message == (
        f"the shell script in ExecStart is more than a list of commands: {why}"
    )
    assert caught.value.hint == (
        "let it end with `exec` and the server's own command line, nothing behind it"
    )


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("a; b", ["b"]),
        ("a;", ["a"]),
        ("a\n\n  # c\n", ["a"]),
        ("a && b && c", ["c"]),
        ("a && b;", ["b"]),
        ("a || b; c", ["c"]),
        ("a | b\nc", ["c"]),
        ("a &\nb", ["b"]),
        ("a > /log; b", ["b"]),
        ("a > /log\nb", ["b"]),
        ("a >& 2; b", ["b"]),
        ("a >;b", ["b"]),
        ("a # c; d\nb # e", ["b"]),
        ("a \\\n  b", ["a", "b"]),
        ("a \\\nb", ["a", "b"]),
        ("\ta\r b", ["a", "b"]),
        ("_A1=x B+=y c D=z", ["c", "D=z"]),
        ("A=x c d", ["c", "d"]),
        ("1A=x c", ["1A=x", "c"]),
        ("time=3; a", ["a"]),
        ("execute a", ["execute", "a"]),
        ("a exec b", ["a", "exec", "b"]),
    ],
)
def test_which_command_is_the_last(script: str, seen: list[str]) -> None:
    assert [word.raw for word in last_command(script, {})] == seen


@pytest.mark.parametrize("word", ["if", "while", "until", "for", "case", "!", "{", "[[", "time",
                                  "trap", "function", "select", "coproc"])  # fmt: skip
def test_what_begins_more_than_a_command_is_refused(word: str) -> None:
    with pytest.raises(UnitRefused, match=re.escape(f"it has '{word}'")):
        last_command(f"{word} a; b", {})


def test_words_of_a_script_know_where_they_stand() -> None:
    script = "cd /srv; exec a  'b c' \\\n d$X # e"
    found = last_command(script, {"X": "1"})
    assert [(word.raw, word.start, word.end) for word in found] == [
        ("a", 14, 15),
        ("'b c'", 17, 22),
        ("d$X", 26, 29),
    ]
    assert [script[word.start : word.end] for word in found] == [word.raw for word in found]


def test_only_changed_words_are_written_anew() -> None:
    script = "A=1 exec a  'b c' \"d\" $X e; "

    def change(seen: tuple[Word, ...]) -> tuple[Word, ...]:
        assert [word.text for word in seen] == ["a", "b c", "d", "$X", "e"]
        return (seen[0], seen[1], Word("f g", ours=True), seen[3], Word("h", ours=True), seen[4])

    assert rewritten(script, change) == "A=1 exec a 'b c' 'f g' $X h e; "
    assert rewritten(script, lambda seen: seen[:1]) == "A=1 exec a; "


def test_words_that_are_not_known_without_the_shell_are_shown_as_they_are_written() -> None:
    seen: list[str] = []

    def look(words: tuple[Word, ...]) -> tuple[Word, ...]:
        seen.extend(word.text for word in words)
        return words

    script = "exec a x$X \"$X y\" *.py 'b c'"
    assert rewritten(script, look) == script
    assert seen == ["a", "x$X", '"$X y"', "*.py", "b c"]


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
        (("bash", "-x", "-ec", "x"), 3),
        (("bash", "+x", "-c", "x"), 3),
        (("bash", "+o", "posix", "-c", "x"), 4),
        (("bash", "+O", "extglob", "-c", "x"), 4),
        (("zsh", "-O", "extglob", "-c", "x"), 4),
        (("ksh", "--rcfile", "-c", "-c", "x"), 4),
        (("dash", "--init-file", "f", "-c", "x"), 4),
        (("bash", "--norc", "-c", "x"), 3),
        (("bash", "-c"), None),
        (("bash", "-", "-c", "x"), None),
        (("bash",), None),
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
