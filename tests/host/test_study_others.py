"""Somebody else on the same host: another tuner, a person who edits the unit."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.host.services import argv, found, install, require_as_found, serves, traces
from tests.host.studies import StudyOnHost, deploy
from tests.testhost import UNIT, SystemdHost

FOREIGN = f"/etc/systemd/system/{UNIT}.d/nice.conf"


@pytest.mark.parametrize("moment", ["loading", "measuring"])
def test_a_second_run_is_refused(host: SystemdHost, tmp_path: Path, moment: str) -> None:
    slow = ("--max-running-requests 64", "AUTOTUNE_SIM_LOAD_S", "30")
    install(host, launcher=(slow,) if moment == "loading" else ())
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, second = (StudyOnHost(host, folder) for folder in folders)
    second.name, second.file = "other", folders[1] / "other.toml"
    # Buckets that never end by themselves: the second run comes while this one measures.
    first.define(lines={"trials": "trials = 1"}, windows=100_000, half_width=1e-12)
    second.define()
    before = found(host)

    def reached() -> bool:
        runs = "small-0-" in " ".join(argv(host))
        return runs and serves(host) == (moment == "measuring")

    with first.start() as process:
        process.until(reached, moment)
        ended = second.run("run")
        assert process.running(), "the first run goes on"
        assert ended.returncode == 1
        said = ended.stderr.splitlines()
        assert re.fullmatch(
            rf"autotune: gpu-a: {re.escape(UNIT)} is held by study 'small' on \S+, "
            rf"pid {process.pid}, since \d+ s",
            said[0],
        ), ended.stderr
        assert len(said) == 2
        again = first.run("run")
        assert again.returncode == 1
        assert f"study 'small' is being run by process {process.pid} on " in again.stderr
        assert "small-0-" in " ".join(argv(host)), "it was not touched"
        process.signal(signal.SIGTERM)
        assert process.wait() == 130
    require_as_found(host, before)


def test_an_edit_of_the_unit_stops_the_study(host: SystemdHost, tmp_path: Path) -> None:
    install(host)
    study = deploy(host, tmp_path)
    before = found(host)
    with study.start() as process:
        process.until(lambda: "small-1-" in " ".join(argv(host)), "the first search trial runs")
        host.write(FOREIGN, "[Service]\nNice=5\n")
        host.run("systemctl daemon-reload")
        assert process.wait() == 1
    logged, said = process.stderr.splitlines()
    assert "ERROR host gpu-a is not proven to be restored: " in logged
    first, second = said.removeprefix("autotune: the study stops: ").split("; gpu-a: ")
    assert first.startswith(f"gpu-a: somebody changed {FOREIGN} since the study began")
    assert second.startswith(f"{UNIT}: its files are not those of the beginning")
    assert traces(host) == ""
    assert host.read(FOREIGN) == "[Service]\nNice=5\n"
    after = found(host)
    assert after.cat.startswith(before.cat)
    assert FOREIGN in after.cat
    assert after.argv == before.argv
    trials = study.trials()
    assert trials[0]["state"] == "complete"
    assert trials[1]["state"] in ("complete", "pruned")
    assert trials[2]["state"] == "failed"
    assert trials[2]["failure"]["kind"] == "DropInConflict"
    assert trials[2]["buckets"] == []
    assert len(trials) == 3
