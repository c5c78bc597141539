"""Words of a unit file, read as systemd reads them (one piece: one grammar); changed without
touching another byte.

`tests/host/test_export.py` holds the reading against systemd itself.
"""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UnitRefused
from autotune.systemd.dropin import quote
from autotune.systemd.unit_text import exec_words, rewritten, sets_command
from tests.testhost.unit import unit_text

HEAD = "# ours\n[Unit]\nDescription=ExecStart=no\n\n[Service]\nUser=llm\n"
BY_HAND = "write the flags there by hand, or export without --in-place: a drop-in needs no edit"
LINES = (
    HEAD + "ExecStart=/usr/bin/serve \\\n"
    "    --budget 8 \\\n"
    "    # how deep: see the card\n"
    "    --topk 4 \\\n"
    "    --last\n"
    "Restart=on-failure\n"
)


def words(text: str) -> list[str]:
    return [word.text for word in exec_words(text)]


def changed(text: str, *changes: tuple[str, str]) -> str:
    """The text with some of its words changed, each `old words -> new words`."""
    held = words(text)
    line = "\n".join(held)
    for old, new in changes:
        assert old.replace(" ", "\n") in line
        line = line.replace(old.replace(" ", "\n"), new.replace(" ", "\n"))
    return rewritten(text, held, [word for word in line.split("\n") if word])


def lines_of(before: str, after: str) -> list[str]:
    """Lines that differ, as a diff shows them."""
    found = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in found if line[0] in "+-"]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("/bin/a --x 1", ["/bin/a", "--x", "1"]),
        ("-@/bin/a name --x", ["name", "--x"]),
        ("+/bin/a  --x \t 1 ", ["/bin/a", "--x", "1"]),
        ("/bin/a 'two words' \"a'b\" ''", ["/bin/a", "two words", "a'b", ""]),
        (r'/bin/a \x41\u00e9\101\s"\t\\" \q', ["/bin/a", "AéA \t\\", "\\q"]),
        ("/bin/a --x \\\n  1 \\\n# no\n ; no\n  --y", ["/bin/a", "--x", "1", "--y"]),
        ("/bin/a \\\n\n--x", ["/bin/a"]),
        ("/old --x\nExecStart=\nExecStart=/bin/a", ["/bin/a"]),
    ],
)
def test_words_are_read_as_systemd_reads_them(command: str, found: list[str]) -> None:
    assert words(f"{HEAD}ExecStart={command}\n[Install]\nExecStart=/bin/other\n") == found


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\a\b\f\n\r\t\v", "\a\b\f\n\r\t\v"),
        (r"\\\"\'", "\\\"'"),
        (r"\s\sa", "  a"),
        (r"\x41\x7f", "A\x7f"),
        (r"\x80\xff", "\udc80\udcff"),  # single bytes, parts of a character
        (r"\101\177", "A\x7f"),
        (r"\200\377", "\udc80\udcff"),
        (r"\400", r"\400"),  # no byte
        (r"\18", r"\18"),
        (r"\x4", r"\x4"),
        (r"\xg1", r"\xg1"),
        (r"\u00e9\u20ac", "é€"),
        (r"\U0001f600", "\U0001f600"),
        (r"\U0010ffff", "\U0010ffff"),
        (r"\U00110000\Uffffffff", "\U0010ffff\U0010ffff"),  # no character: equals no word
        (r"\uD8", r"\uD8"),
        (r"\u00e9f", "éf"),
        (r"\x41B", "AB"),
        (r"\1012", "A2"),
        (r"\q\%", r"\q\%"),
        ("a\\ b", "a\\"),  # a blank is not joined: the word ends behind the backslash
        ("'a\\'b'", "a'b"),
        ('"a\\"b"', 'a"b'),
        ("a'b c'd\"e f\"g", "ab cde fg"),
        ("'\"'", '"'),
        ('"\'"', "'"),
        ("''", ""),
        ("aXb", "aXb"),
    ],
)
def test_escapes_and_quotes(written: str, read: str) -> None:
    found = exec_words(f"[Service]\nExecStart=/bin/a {written} --end\n")
    assert found[1].text == read
    assert found[-1].text == "--end"
    assert len(found[1].places) == len(read)


def test_words_know_where_each_character_stands() -> None:
    text = "[Service]\n# ExecStart=no\nExecStart = -/bin/a  'b c'\\x41d \\\n  e\n"
    program, first, last = exec_words(text)
    assert (program.text, first.text, last.text) == ("/bin/a", "b cAd", "e")
    assert text[program.place[0] : program.place[1]] == "-/bin/a"
    assert [text[begin:end] for begin, end in program.places] == list("/bin/a")
    assert text[first.place[0] : first.place[1]] == "'b c'\\x41d"
    assert [text[begin:end] for begin, end in first.places] == ["b", " ", "c", "\\x41", "d"]
    assert text[last.place[0] : last.place[1]] == "e"
    text = "[Service]\nExecStart=/a 'b\\\n c'\n"  # the line end is a blank, where its backslash was
    _, word = exec_words(text)
    assert word.text == "b  c"
    assert [text[begin:end] for begin, end in word.places] == ["b", "\\", " ", "c"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[Service]\nExecStart=/a\n", ["/a"]),
        ("[Service]\n  ExecStart  =  /a b  ", ["/a", "b"]),
        ("[ Service ]\nExecStart=/a\n", None),
        ("[service]\nExecStart=/a\n", None),
        ("ExecStart=/a\n", None),
        ("[Unit]\nExecStart=/a\n[Service]\nExecStart=/b\n", ["/b"]),
        ("[Service]\nExecStart=/b\n[Install]\nExecStart=/a\n", ["/b"]),
        (" [Service] \nExecStart=/b\n", ["/b"]),
        ("[Service]\nexecstart=/a\n", None),
        ("[Service]\nExecStartPre=/a\nExecStart=/b\n", ["/b"]),
        ("[Service]\nExecStart\nExecStart=/b\n", ["/b"]),
        ("[Service]\nExecStart=/b --x=ExecStart=1\n", ["/b", "--x=ExecStart=1"]),
        ("[Service]\nExecStart=/a\nExecStart= \t\nExecStart=/b\n", ["/b"]),
        ("[Service]\nExecStart=/a\nExecStart=\n", None),
        ("[Service]\nExecStart=/a \\\\\n", ["/a", "\\"]),  # an even number ends the line
        ("[Service]\nExecStart=/a \\\\\nUser=b\n", ["/a", "\\"]),
        ("[Service]\nExecStart=/a \\\\\\\n  b\n", ["/a", "\\", "b"]),
        ("[Service]\nExecStart=/a \\\n # c\\\n;d\n  b\n", ["/a", "b"]),
        ("[Service]\nExecStart=/a b\\\nc", ["/a", "b", "c"]),
        ("[Service]\nExecStart=/a b\\", ["/a", "b"]),
        ("[Service]\nExecStart=/a b \\\n", ["/a", "b"]),
        ("# \\\n[Service]\nExecStart=/a\n", ["/a"]),
        ("[Service]\nExecStart=!!@/a name b\n", ["name", "b"]),
        ("[Service]\nExecStart=|:+/a b\n", ["/a", "b"]),
        # Only blanks, tabs and line ends are blanks.
        ("[Service]\n\vExecStart=/a\n", None),
        ("[Service]\nExecStart\v=/a\n", None),
        ("[Service]\v\nExecStart=/a\n", None),
        ("[Service]\nExecStart=/a\vb\f c\n", ["/a\vb\f", "c"]),
        ("[Service]\nExecStart=/a \\\n\v# b\n", ["/a", "\v#", "b"]),
        ("[Service]\nExecStart=/a\nExecStart=\v\nExecStart=\nExecStart=/b\n", ["/b"]),
        ("[Service\nExecStart=/a\n[Service]\nExecStart=/b\n", ["/b"]),
        ("[Service]\nExecStart=/b\n[Install\nEnvironment=X]\n", ["/b"]),
        ("[Service]\nx]\nExecStart=/b\n", ["/b"]),
        ("[Service]\n[x\nExecStart=/b\n", ["/b"]),
    ],
)
def test_the_line_that_counts(text: str, found: list[str] | None) -> None:
    if found is None:
        with pytest.raises(UnitRefused, match="the file has 0 ExecStart= lines that count"):
            exec_words(text)
    else:
        assert words(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "the file has 0 ExecStart= lines that count"),
        (HEAD + "ExecStart=/a\nExecStart=/b\n", "the file has 2 ExecStart= lines that count"),
        (HEAD + "ExecStart=/a 'b\n", "a quote in ExecStart= has no end"),
        (HEAD + "ExecStart=/a\r\n", "the file has lines that end with a carriage return"),
        (HEAD + "ExecStart=/a \0\n", "the file has lines that end with a carriage return"),
        (HEAD + "ExecStart=/a \"b'\n", "a quote in ExecStart= has no end"),
        (HEAD + "ExecStart=/a\nExecStart=\nExecStart=/b\nExecStart=/c",
         "the file has 2 ExecStart= lines that count"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(UnitRefused) as caught:
        exec_words(text)
    assert (caught.value.message, caught.value.hint) == (said, BY_HAND)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))))
def test_every_word_that_we_write_is_read_again(texts: list[str]) -> None:
    line = " ".join(quote(text) for text in texts)
    assert words(f"[Service]\nExecStart=/bin/a {line}\n") == [
        "/bin/a",
        *(text.replace("%", "%%") for text in texts),
    ]


def test_a_value_changes_its_own_characters() -> None:
    after = changed(LINES, ("--budget 8", "--budget 64"), ("--topk 4", "--topk 6"))
    assert after == LINES.replace("--budget 8", "--budget 64").replace("--topk 4", "--topk 6")


def test_a_new_flag_gets_a_line_where_flags_have_lines() -> None:
    after = changed(LINES, ("--last", "--last --window 2048"))
    assert lines_of(LINES, after) == ["-     --last", "+     --last \\", "+     --window 2048"]
    two = changed(LINES, ("--last", "--last --window 2048 --deep"))
    assert two == LINES.replace("--last", "--last \\\n    --window 2048 \\\n    --deep")
    short = HEAD + "ExecStart=/bin/a --x 1\n"
    assert changed(short, ("--x 1", "--x 1 --y 2")) == short.replace("--x 1", "--x 1 --y 2")


def test_a_flag_goes_with_its_line_and_a_comment_stays() -> None:
    assert lines_of(LINES, changed(LINES, ("--budget 8", ""))) == ["-     --budget 8 \\"]
    assert lines_of(LINES, changed(LINES, ("--topk 4", ""))) == ["-     --topk 4 \\"]
    assert lines_of(LINES, changed(LINES, ("--last", ""))) == [
        "-     --topk 4 \\",
        "+     --topk 4",
        "-     --last",
    ]


def test_quotes_around_a_value_stay() -> None:
    text = HEAD + "ExecStart=/bin/a --x=\"8\" '--y' '{\"depth\": 3}'\n"
    held = words(text)
    after = rewritten(text, held, [held[0], "--x=16", "--y", '{"depth": 12}'])
    assert after == text.replace('"8"', '"16"').replace(": 3}", ": 12}")
    odd = rewritten(text, held, [held[0], "--x=a b", *held[2:]])
    assert odd == text.replace('--x="8"', '"--x=a b"')


@pytest.mark.parametrize(
    ("command", "new", "after"),
    [
        # the smallest change: what is equal at both ends stays as it is written
        ("--x=18", "--x=128", "--x=128"),
        ("--x=128", "--x=18", "--x=18"),
        ("--x=11", "--x=1", "--x=1"),
        ("--x=1", "--x=11", "--x=11"),
        ("'--x=1'", "--x=12", "'--x=12'"),
        ("'1'", "21", "'21'"),
        (r"--x=\x31b", "--x=2b", "--x=2b"),
        (r"--x=\x31b", "--x=1c", r"--x=\x31c"),
        (r"--x=\x31b", "--x=1", r"--x=\x31"),
        ("a", "", '""'),
        ("''", "a", "a"),
        ("'a b'", "a c", "'a c'"),
        ("'a b'", "a  b", '"a  b"'),
        ("a", "a b", '"a b"'),
        ("a", "a%", '"a%%"'),
        ("50%%", "60%", '"60%%"'),
        ("a", "a$b", '"a$b"'),
    ],
)
def test_one_word_becomes_another(command: str, new: str, after: str) -> None:
    text = HEAD + "ExecStart=/bin/a {} --end # no comment\n"
    held = [word.replace("%%", "%") for word in words(text.format(command))]
    wanted = [held[0], new, *held[2:]]
    assert rewritten(text.format(command), held, wanted) == text.format(after)


def test_words_that_become_more_or_fewer_are_written_in_their_place() -> None:
    text = HEAD + "ExecStart=/bin/a --x 1 'two  words' --end\nUser=b\n"
    held = words(text)
    more = rewritten(text, held, ["/bin/a", "--y=2 3", "b", "c", "d", "--end"])
    assert more == text.replace("--x 1 'two  words'", "\"--y=2 3\" b 'c' d")
    fewer = rewritten(text, held, ["/bin/a", "--y", "--end"])
    assert fewer == text.replace("--x 1 'two  words'", "--y")
    grown = rewritten(text, held, [held[0], "--y", "z", *held[2:]])
    assert grown == text.replace("--x", "--y z")


def test_several_changes_at_once_do_not_disturb_each_other() -> None:
    after = changed(
        LINES, ("--budget 8", "--budget 1024"), ("--topk 4", ""), ("--last", "--last --more 1")
    )
    assert after == (
        LINES.replace("--budget 8", "--budget 1024")
        .replace("    --topk 4 \\\n", "")
        .replace("--last", "--last \\\n    --more 1")
    )


def test_a_new_flag_stands_where_it_was_put() -> None:
    text = HEAD + "ExecStart=/bin/a --x 1 \\\n\t--y 2\n"
    held = words(text)
    # The flag before stands on a line of its own, so does the new one.
    last = rewritten(text, held, [*held, "--z", "3"])
    assert last == text.replace("--y 2", "--y 2 \\\n\t--z 3")
    # There it does not.
    middle = rewritten(text, held, [*held[:3], "--z", "3", *held[3:]])
    assert middle == text.replace("--x 1", "--x 1 --z 3")
    first = rewritten(text, held, [held[0], "--z", "3", *held[1:]])
    assert first == text.replace("/bin/a", "/bin/a --z 3")


def test_the_first_flag_says_whether_flags_have_lines() -> None:
    text = HEAD + "ExecStart=/bin/a \\\n\t--x\n"
    assert rewritten(text, ["/bin/a", "--x"], ["/bin/a", "--x", "--y"]) == text.replace(
        "--x", "--x \\\n\t--y"
    )
    bare = HEAD + "ExecStart=/bin/a \\\n\tx\n"
    assert rewritten(bare, ["/bin/a", "x"], ["/bin/a", "x", "--y"]) == bare.replace(
        "x\n", "x --y\n"
    )


def test_the_last_word_goes_with_the_comment_before_it() -> None:
    """Nothing may follow that the line before would go on with."""
    text = HEAD + "ExecStart=/bin/a --x \\\n  # why\n  --y\nUser=b\n"
    after = rewritten(text, ["/bin/a", "--x", "--y"], ["/bin/a", "--x"])
    assert after == HEAD + "ExecStart=/bin/a --x\nUser=b\n"


def test_a_comment_sign_within_the_word_is_none() -> None:
    text = HEAD + "ExecStart=/bin/a --x '\\n#' --y\n"
    held = words(text)
    assert held[2] == "\n#"
    after = rewritten(text, held, [*held[:2], held[3]])
    assert after == HEAD + "ExecStart=/bin/a --x --y\n"


def test_many_equal_words_are_matched_by_their_order() -> None:
    """difflib's heuristic for popular items (from 200 on) would take them for noise."""
    held = ["/bin/a", *(word for n in range(150) for word in ("-v", f"--x{n}"))]
    text = HEAD + "ExecStart=" + " ".join(held) + "\n"
    wanted = [word for word in held if word != "--x70"]
    assert rewritten(text, held, wanted) == text.replace(" --x70", "")
    text = HEAD + "ExecStart=/bin/a" + " '-v' -w" * 120 + "\n"
    held = words(text)
    assert rewritten(text, held, [held[0], *held[2:]]) == text.replace(" '-v'", "", 1)


def test_nothing_to_change_changes_nothing() -> None:
    held = words(LINES)
    assert rewritten(LINES, held, held) == LINES


def test_a_script_keeps_its_lines() -> None:
    text = HEAD + "ExecStart=/bin/bash -c 'cd /srv && \\\n  exec serve --x 8 \\\n  --y %%1'\n"
    special = text.replace("%%1", "%h")
    held = [word.replace("%h", "/root") for word in words(special)]
    with pytest.raises(UnitRefused, match="holds a specifier") as caught:
        rewritten(special, held, [*held[:2], held[2].replace("--x 8", "--x 32")])
    assert caught.value.hint == BY_HAND
    plain = text.replace("%%1", "1")
    held = words(plain)
    after = rewritten(plain, held, [*held[:2], held[2].replace("--x 8", "--x 32")])
    assert after == plain.replace("--x 8", "--x 32")


def test_a_specifier_may_stand_for_anything_and_stays() -> None:
    text = HEAD + "ExecStart=/bin/a --name %i --rate 100%% --x 8\n"
    held = ["/bin/a", "--name", "one", "--rate", "100%", "--x", "8"]
    assert rewritten(text, held, [*held[:-1], "9"]) == text.replace("--x 8", "--x 9")
    assert rewritten(text, held, [*held, "5%"]).endswith('--x 8 "5%%"\n')


FROM_VARIABLE = (
    "a flag comes from the variable $ARGS, not from a word of ExecStart=",
    "write its words into ExecStart=, or export without --in-place",
)
OTHER_WORDS = ("its ExecStart= does not read as what systemd holds", BY_HAND)
PROGRAM = ("the program itself would change", BY_HAND)


@pytest.mark.parametrize(
    ("held", "wanted", "said"),
    [
        (["/bin/a", "$ARGS"], ["/bin/a", "--x", "1"], FROM_VARIABLE),
        (["/bin/a", "--other"], ["/bin/a", "--x"], OTHER_WORDS),
        (["/bin/a"], ["/bin/a"], OTHER_WORDS),
        (["/bin/a", "$ARGS"], ["/bin/b", "$ARGS"], PROGRAM),
        (["/bin/a", "$ARGS"], ["--x", "/bin/a", "$ARGS"], PROGRAM),
        (["/bin/a", "$ARGS"], ["$ARGS"], PROGRAM),
        (["/bin/a", "$ARGS", "b"], ["/bin/a", "$ARGS"], OTHER_WORDS),
    ],
)
def test_a_change_beyond_words_is_refused(
    held: list[str], wanted: list[str], said: tuple[str, str]
) -> None:
    with pytest.raises(UnitRefused) as caught:
        rewritten(HEAD + "ExecStart=/bin/a $ARGS\n", held, wanted)
    assert (caught.value.message, caught.value.hint) == said


@pytest.mark.parametrize(
    ("variable", "refused"),
    [("$ARGS", True), ("${ARGS}", True), ("$_a1", True), ("$1", False), ("x$ARGS", False),
     ("$ARGS-x", False), ("${ARGS", False), ("$", False)],
)  # fmt: skip
def test_words_of_a_variable_are_not_ours_to_change(variable: str, refused: bool) -> None:
    text = HEAD + f"ExecStart=/bin/a {variable} b\n"
    held = words(text)
    if refused:
        with pytest.raises(UnitRefused) as caught:
            rewritten(text, held, [held[0], "c", "b"])
        assert caught.value.message == (
            f"a flag comes from the variable {variable}, not from a word of ExecStart="
        )
    else:
        assert words(rewritten(text, held, [held[0], "c", "b"])) == ["/bin/a", "c", "b"]
    assert rewritten(text, held, [*held[:2], "c"]) == text.replace(" b\n", " c\n")


@pytest.mark.parametrize(
    ("word", "held", "equal"),
    [
        ("a%ib", "a-any-b", True),
        ("a%ib", "ab", True),
        ("a%ib", "a\nb", True),
        ("a%ib", "a", False),
        ("a%%b", "a%b", True),
        ("a%%b", "a%%b", False),
        ("a%%b", "axb", False),
        ("a.b", "axb", False),
        ("100%", "100%", True),
    ],
)
def test_a_specifier_in_a_word(word: str, held: str, equal: bool) -> None:
    text = HEAD + f"ExecStart=/bin/a '{word}' --x 1\n"
    if equal:
        after = rewritten(text, ["/bin/a", held, "--x", "1"], ["/bin/a", held, "--x", "2"])
        assert after == text.replace("--x 1", "--x 2")
    else:
        with pytest.raises(UnitRefused, match="does not read as what systemd holds"):
            rewritten(text, ["/bin/a", held, "--x", "1"], ["/bin/a", held, "--x", "2"])


TEXTS = st.text(st.sampled_from("ab1 -='\"\\%$;#\n\t"), max_size=5)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.lists(TEXTS, max_size=6), st.data())
def test_whatever_is_wanted_is_read_again_or_refused(
    old: list[str], new: list[str], data: st.DataObject
) -> None:
    """Any words to any others, the file's own spelling drawn: plain, quoted, on lines."""
    spelled = [
        data.draw(st.sampled_from([quote(one), " \\\n  " + quote(one)]))
        if one
        else data.draw(st.sampled_from(["''", '""']))
        for one in old
    ]
    text = HEAD + "ExecStart=/bin/a " + " ".join(spelled) + "\nRestart=always\n"
    held = [word.replace("%%", "%") for word in words(text)]
    assert held == ["/bin/a", *old]
    try:
        after = rewritten(text, held, ["/bin/a", *new])
    except UnitRefused as error:
        assert "variable" in error.message or "word by word" in error.message  # noqa: PT017
        return
    assert [word.replace("%%", "%") for word in words(after)] == ["/bin/a", *new]
    assert after.startswith(HEAD + "ExecStart=/bin/a")
    assert after.endswith("\nRestart=always\n")


def test_the_unit_of_the_tests_keeps_all_but_three_values() -> None:
    text = unit_text()
    held = words(text)
    wanted = [*held, "--speculative-draft-window-size", "2048"]
    wanted[wanted.index("--speculative-ddtree-budget") + 1] = "16"
    found = lines_of(text, rewritten(text, held, wanted))
    assert found == [
        "-     --speculative-ddtree-budget 8 \\",
        "+     --speculative-ddtree-budget 16 \\",
        "-     --enable-metrics",
        "+     --enable-metrics \\",
        "+     --speculative-draft-window-size 2048",
    ]


def test_a_drop_in_that_sets_a_command_is_seen() -> None:
    assert sets_command("[Service]\nExecStart=\n")
    assert not sets_command("[Service]\n# ExecStart=/bin/a\nEnvironment=ExecStart=/bin/a\n")
