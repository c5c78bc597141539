from __future__ import annotations

import resource
from pathlib import Path

import pytest

from autotune.checking.findings import CheckState
from autotune.checking.here import findings_here
from autotune.config import load_study
from autotune.errors import StudyError
from autotune.open_files import BESIDES_STREAMS, allow_streams

ENDLESS = resource.RLIM_INFINITY


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limit of this process, last; those before it first."""
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, now: limits.append(now))
    return limits


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), (4096, 4096)),
        ((4096, 4096), (4096, 4096)),
        ((1024, 10**9), (1 << 16, 10**9)),
        ((1024, ENDLESS), (1 << 16, ENDLESS)),
        ((ENDLESS, ENDLESS), (ENDLESS, ENDLESS)),
        ((10**6, 10**9), (10**6, 10**9)),
    ],
)
def test_the_limit_is_raised_and_never_lowered(
    limit: list[tuple[int, int]], before: tuple[int, int], after: tuple[int, int]
) -> None:
    limit[:] = [before]
    assert f"need {8 + BESIDES_STREAMS} open files" in allow_streams(8)
    assert limit[-1] == after


def test_more_streams_than_the_system_allows_are_refused(limit: list[tuple[int, int]]) -> None:
    most = 4096 - BESIDES_STREAMS
    assert "4096 are allowed" in allow_streams(most)
    with pytest.raises(StudyError, match=r"need 4097 open files, .* have 4096") as refused:
        allow_streams(most + 1)
    assert "LimitNOFILE" in refused.value.hint


def test_an_endless_limit_holds_any_number(limit: list[tuple[int, int]]) -> None:
    limit[:] = [(1024, ENDLESS)]
    assert "any number" in allow_streams(10**6)
    assert limit[-1][0] == 10**6 + BESIDES_STREAMS


@pytest.mark.parametrize(("most", "state"), [(8, CheckState.BAD), (4096, CheckState.OK)])
def test_check_says_it(
    limit: list[tuple[int, int]],
    most: int,
    state: CheckState,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    limit[:] = [(8, most)]
    findings = findings_here(load_study("demo"), None, None)
    assert next(one.state for one in findings if one.what == "open files") is state
