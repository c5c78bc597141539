"""The examples of the help texts that need a service on this machine, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import Example, Place, examples_at
from tests.integration.small_study import SmallStudy

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("words", "example"), examples_at(Place.SERVICE))
def test_an_example_does_what_it_says(
    words: tuple[str, ...], example: Example, tmp_path: Path
) -> None:
    """The study of that name in the working folder is a small one of one host."""
    study = SmallStudy(tmp_path, changes={'hosts = ["demo-a", "demo-b"]': 'hosts = ["demo-a"]'})
    study.path.rename(study.path.with_name("demo.toml"))
    try:
        ended = study.autotune(*words)
    finally:
        study.kill_all()
    assert ended.returncode in example.codes, ended.stderr
    assert example.says in ended.stdout + ended.stderr
