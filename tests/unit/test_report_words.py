"""The report's words for what it counts."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.errors import AutotuneError, MeasurementError, TargetError, TrialError
from autotune.report.story import KINDS


def classes(of: type[AutotuneError]) -> Iterator[type[AutotuneError]]:
    for one in of.__subclasses__():
        yield one
        yield from classes(one)


def test_every_way_that_a_start_may_end_has_words() -> None:
    roots = (TrialError, MeasurementError, TargetError)
    own = {one.__name__ for root in roots for one in classes(root) if "autotune." in one.__module__}
    assert own - KINDS.keys() == set()
