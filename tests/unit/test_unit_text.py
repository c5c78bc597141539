"""Words of a unit file: read as systemd reads them, changed without touching another byte.

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
    ("text", "said"),
    [
        (HEAD, "0 ExecStart= lines"),
        (HEAD + "ExecStart=/a\nExecStart=/b\n", "2 ExecStart= lines"),
        (HEAD + "ExecStart=/a 'b\n", "no end"),
        (HEAD + "ExecStart=/a\r\n", "carriage return"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(UnitRefused, match=said):
        exec_words(text)


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


def test_a_script_keeps_its_lines() -> None:
    text = HEAD + "ExecStart=/bin/bash -c 'cd /srv && \\\n  exec serve --x 8 \\\n  --y %%1'\n"
    special = text.replace("%%1", "%h")
    held = [word.replace("%h", "/root") for word in words(special)]
    with pytest.raises(UnitRefused, match="holds a specifier"):
        rewritten(special, held, [*held[:2], held[2].replace("--x 8", "--x 32")])
    plain = text.replace("%%1", "1")
    held = words(plain)
    after = rewritten(plain, held, [*held[:2], held[2].replace("--x 8", "--x 32")])
    assert after == plain.replace("--x 8", "--x 32")


def test_a_specifier_may_stand_for_anything_and_stays() -> None:
    text = HEAD + "ExecStart=/bin/a --name %i --rate 100%% --x 8\n"
    held = ["/bin/a", "--name", "one", "--rate", "100%", "--x", "8"]
    assert rewritten(text, held, [*held[:-1], "9"]) == text.replace("--x 8", "--x 9")
    assert rewritten(text, held, [*held, "5%"]).endswith('--x 8 "5%%"\n')


@pytest.mark.parametrize(
    ("held", "wanted", "said"),
    [
        (["/bin/a", "$ARGS"], ["/bin/a", "--x", "1"], "comes from the variable"),
        (["/bin/a", "--other"], ["/bin/a", "--x"], "does not read as"),
        (["/bin/a"], ["/bin/a"], "does not read as"),
        (["/bin/a", "$ARGS"], ["/bin/b", "$ARGS"], "program itself"),
    ],
)
def test_a_change_beyond_words_is_refused(held: list[str], wanted: list[str], said: str) -> None:
    with pytest.raises(UnitRefused, match=said):
        rewritten(HEAD + "ExecStart=/bin/a $ARGS\n", held, wanted)


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
