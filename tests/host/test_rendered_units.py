"""What a real systemd makes of the drop-ins that we write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.supervisors.base import Launch, Word
from autotune.systemd.dropin import held_argv, render
from autotune.systemd.expand import expand
from autotune.systemd.facts import ExecCommand, exec_commands
from tests.host.conftest import HostFactory
from tests.host.tiny_unit import Probe

WORD = st.text(
    st.one_of(
        st.sampled_from(list("$%\\\"'{};: \t\n#@-+!~*=`\x01\x7f")),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    ),
    max_size=12,
)


PIECE = st.sampled_from(["$", "$$", "{", "}", "A", "B", "NONE", ":", "-", " ", "x", "\\"])
EXPANDED = st.lists(PIECE, max_size=6).map("".join)
VALUE = st.text(st.sampled_from(list("ab \t\"'\\$")), max_size=8)


@pytest.fixture(scope="module")
def probe(systemd_hosts: HostFactory) -> Probe:
    return Probe(systemd_hosts("gpu-b"))


@settings(max_examples=40, deadline=None)
@given(
    words=st.lists(st.tuples(WORD, st.booleans()), min_size=1, max_size=8),
    flags=st.sets(st.sampled_from(["ignore-failure", "no-env-expand", "privileged"])),
    title=st.one_of(st.just("/srv/dump"), WORD.filter(bool)),
)
def test_systemd_holds_what_was_rendered(
    probe: Probe, words: list[tuple[str, bool]], flags: set[str], title: str
) -> None:
    command = ExecCommand("/srv/dump", (title,), frozenset(flags))
    further = (Word(text, ours) for text, ours in words)
    launch = Launch((Word(title), *further), {"NASTY": words[0][0]})
    told = probe.load(render(launch, command))
    (held,) = exec_commands(told["ExecStartEx"])
    assert held.path == "/srv/dump"
    assert held.argv == held_argv(launch, expands=command.expands)
    assert held.flags == command.flags
    assert told["Environment"] == [f"NASTY={words[0][0]}"]


@settings(max_examples=40, deadline=None)
@given(
    inherited=st.lists(EXPANDED, min_size=1, max_size=8),
    ours=st.lists(WORD, max_size=3),
    first=VALUE,
    second=VALUE,
    expands=st.booleans(),
)
def test_a_process_gets_the_expanded_words(
    probe: Probe, inherited: list[str], ours: list[str], first: str, second: str, expands: bool
) -> None:
    flags = frozenset() if expands else frozenset({"no-env-expand"})
    command = ExecCommand("/srv/dump", ("/srv/dump",), flags)
    words = (*(Word(text) for text in inherited), *(Word(text, ours=True) for text in ours))
    launch = Launch((Word("/srv/dump"), *words), {"A": first, "B": second})
    (held,) = exec_commands(probe.load(render(launch, command))["ExecStartEx"])
    seen, environ = probe.start()
    wanted = expand(held.argv, environ) if expands else held.argv
    # The kernel puts the interpreter of a script before its words.
    assert seen == ("/bin/sh", *wanted)
    if ours:
        assert seen[-len(ours) :] == tuple(ours)
