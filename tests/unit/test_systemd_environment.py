"""Variables of a unit, as systemd reads them (the host test holds this against systemd itself)."""

from __future__ import annotations

import pytest

from autotune.systemd.environment import parse_environment_file, unit_environment


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1\nB=two words  \n", {"A": "1", "B": "two words"}),
        ("  A = 1\n", {"A": "1"}),
        ("# A=1\n; B=2\nC=3 # no comment\n", {"C": "3 # no comment"}),
        ("# a \\\nA=1\nB=2\n", {"B": "2"}),
        ("A='x y' 'z'\nB=\"a \\\" \\n b\"\n", {"A": "x yz", "B": 'a " \\n b'}),
        ('A=a"b c"\n', {"A": 'a"b c"'}),
        ("A=one \\\ntwo\n", {"A": "one two"}),
        ("A='two\nlines'\n", {"A": "two\nlines"}),
        ("export A=1\n1A=2\nA-B=3\nno value\n", {}),
        ("A=\nB=''\n", {"A": "", "B": ""}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=b\\ c\\x\r\n", {"A": "b cx"}),
    ],
)
def test_a_file(text: str, found: dict[str, str]) -> None:
    assert parse_environment_file(text) == found


def test_files_count_after_variables_and_unset_last() -> None:
    found = unit_environment(
        ["A=unit", "B=unit", "C=unit", "D=1"],
        ["A=one\n", "A=two\nE=file\n"],
        ["C", "D=2", "E=file"],
    )
    assert found.variables == {"A": "two", "B": "unit", "D": "1"}
    assert found.from_files == {"A", "E"}
