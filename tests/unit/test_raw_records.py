"""Raw request records: whole in their file, within their budget, and never in the way."""

from __future__ import annotations

import logging
import math
import os
import stat
from pathlib import Path

import pandas as pd
import pytest

from autotune.benchmark.requests import Failure, Outcome, RequestTimings
from autotune.pruning_records import prune
from autotune.raw import RawRequests, raw_requests
from autotune.raw_store import MB, RawFile, RawStore, raw_folder, surplus
from autotune.repository import Repository
from autotune.storage import open_engine
from tests.command_line import called
from tests.databases import template

GOOD = RequestTimings(
    sent_s=100.0,
    ended_s=100.5,
    chunk_s=(100.1, 100.3, 100.5),
    chunk_tokens=(2.0, 3.0, 1.0),
    live=True,
    outcome=Outcome.SUCCESSFUL,
    completion_tokens=6,
    prompt_tokens=60,
    cached_tokens=0,
    finish_reason="length",
)
BAD = RequestTimings(
    sent_s=100.25,
    ended_s=100.75,
    chunk_s=(),
    chunk_tokens=(),
    live=False,
    outcome=Outcome.ERRORED,
    failure=Failure.HTTP_STATUS,
    message="503 for --api-key sk-secret-of-ours",
)


def some(bucket: str = "60x1", count: int = 1) -> RawRequests:
    return raw_requests(bucket, [GOOD] * count)


def test_every_request_is_there_with_every_chunk(tmp_path: Path) -> None:
    store = RawStore(tmp_path / "requests", most_bytes=MB)
    measured = [raw_requests("60x1", [GOOD, BAD]), some("1024x8"), some("60x1")]
    store.keep(7, host="gpu-a", claim_id="c7", measured=measured)
    (file,) = store.files()
    frame = pd.read_parquet(file.path)
    assert frame["trial"].tolist() == [7] * 4
    assert frame["host"].tolist() == ["gpu-a"] * 4
    assert frame["bucket"].tolist() == ["60x1", "60x1", "1024x8", "60x1"]
    assert frame["measured"].tolist() == [0, 0, 0, 1]
    first, second = frame.iloc[0], frame.iloc[1]
    assert (first["sent_s"], first["ended_s"]) == (0.0, pytest.approx(0.5))
    assert first["ttft_ms"] == pytest.approx(100.0)
    assert first["tpot_ms"] == pytest.approx(80.0)
    assert first["chunk_ms"].tolist() == pytest.approx([100.0, 300.0, 500.0])
    assert first["chunk_tokens"].tolist() == [2.0, 3.0, 1.0]
    assert (first["completion_tokens"], first["prompt_tokens"]) == (6, 60)
    assert (first["outcome"], first["finish_reason"]) == ("successful", "length")
    assert (second["outcome"], second["failure"]) == ("errored", "http-status")
    assert second["sent_s"] == pytest.approx(0.25)
    assert math.isnan(second["ttft_ms"])
    assert second["chunk_ms"].tolist() == []
    assert "sk-secret-of-ours" not in second["message"]


def test_the_oldest_go_when_there_is_too_much(tmp_path: Path) -> None:
    whole = RawStore(tmp_path, most_bytes=MB)
    for number in range(3):
        whole.keep(number, host="a", claim_id=f"c{number}", measured=[some()])
        path = tmp_path / f"{number:06d}-c{number}.parquet"
        os.utime(path, (1000.0 + number, 1000.0 + number))
    size = whole.files()[0].size
    RawStore(tmp_path, most_bytes=2.5 * size).keep(3, host="a", claim_id="c3", measured=[some()])
    assert [file.path.name for file in whole.files()] == [
        "000002-c2.parquet",
        "000003-c3.parquet",
    ]
    assert list(tmp_path.glob("*.part")) == []


def test_a_budget_of_nothing_keeps_nothing(tmp_path: Path) -> None:
    store = RawStore(tmp_path / "requests", most_bytes=0)
    store.keep(0, host="a", claim_id="c", measured=[some()])
    assert not store.folder.exists()
    assert store.files() == []


def test_a_disk_that_refuses_costs_the_records_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "requests").write_text("a file where the folder should be")
    store = RawStore(tmp_path / "requests", most_bytes=MB)
    with caplog.at_level(logging.WARNING):
        store.keep(3, host="a", claim_id="c", measured=[some()])
    assert "the raw requests of trial 3 were not kept" in caplog.text


def test_half_a_file_does_not_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "000003-c.parquet").mkdir()  # what was written cannot take its name
    with caplog.at_level(logging.WARNING):
        RawStore(tmp_path, most_bytes=MB).keep(3, host="a", claim_id="c", measured=[some()])
    assert "the raw requests of trial 3 were not kept" in caplog.text
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.parametrize(
    ("most_bytes", "before_s", "gone"),
    [
        (None, None, []),
        (60, None, []),
        (59, None, [1]),
        (30, None, [1, 2]),
        (0, None, [1, 2, 3]),
        (None, 2.5, [1, 2]),
        (10, 1.5, [1, 2, 3]),
        (30, 1.5, [1, 2]),
        (None, 9.0, [1, 2, 3]),
    ],
)
def test_what_goes(most_bytes: float | None, before_s: float | None, gone: list[int]) -> None:
    files = [RawFile(float(n), Path(f"{n}"), size) for n, size in ((3, 30), (1, 10), (2, 20))]
    found = surplus(files, most_bytes=most_bytes, before_s=before_s)
    assert [int(file.path.name) for file in found] == gone


def test_where_they_lie(tmp_path: Path) -> None:
    assert raw_folder(f"sqlite:///{tmp_path}/a.db", "s", data=Path("/data")) == (
        tmp_path / "a.db-requests" / "s"
    )
    one = raw_folder("postgresql+psycopg://u:secret@h/n", "s", data=Path("/data"))
    other = raw_folder("postgresql+psycopg://u:changed@h/n", "s", data=Path("/data"))
    assert one == other
    assert one.parts[:3] == ("/", "data", "requests")
    assert raw_folder("postgresql+psycopg://u@h/m", "s", data=Path("/data")) != one


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with the stored study `demo` and the records of three starts."""
    template(tmp_path).rename(tmp_path / "autotune.db")
    url = f"sqlite:///{tmp_path}/autotune.db"
    engine = open_engine(url, create=False)
    definition = {"study": {"raw_records_mb": 0.001}}
    Repository(engine).open_study("demo", definition=definition, fingerprint="f", provenance={})
    engine.dispose()
    store = RawStore(raw_folder(url, "demo", data=tmp_path), most_bytes=MB)
    for number in range(3):
        store.keep(number, host="a", claim_id=f"c{number}", measured=[some(count=20)])
        os.utime(store.files()[-1].path, (1000.0 + number, 1000.0 + number))
    return tmp_path


def left(folder: Path) -> list[str]:
    return sorted(path.name[:6] for path in folder.glob("autotune.db-requests/demo/*"))


def test_prune_goes_by_the_budget_of_the_study(folder: Path) -> None:
    ended = called("prune", "--study", "demo", folder=folder)
    assert (ended.code, left(folder)) == (0, [])
    assert "requests of 3 starts deleted" in ended.out
    again = called("prune", "--study", "demo", folder=folder)
    assert "no raw request records of demo" in again.out


def test_prune_deletes_nothing_in_a_dry_run(folder: Path) -> None:
    ended = called("prune", "--study", "demo", "--keep-mb", "0", "--dry-run", folder=folder)
    assert "requests of 3 starts would be deleted" in ended.out
    assert len(left(folder)) == 3


def test_prune_keeps_what_fits_and_what_is_young(folder: Path) -> None:
    size = next(folder.glob("autotune.db-requests/demo/*")).stat().st_size
    words = ("prune", "--study", "demo")
    called(*words, "--keep-mb", str(2.5 * size / MB), folder=folder)
    assert left(folder) == ["000001", "000002"]
    newest = max(folder.glob("autotune.db-requests/demo/*"))
    os.utime(newest)
    ended = called(*words, "--older-than-days", "1", folder=folder)
    assert left(folder) == ["000002"]
    assert "requests of 1 starts deleted" in ended.out


def test_prune_of_an_unknown_study_deletes_nothing(folder: Path) -> None:
    ended = called("prune", "--study", "other", folder=folder)
    assert ended.code == 2
    assert "no study 'other'" in ended.err
    assert len(left(folder)) == 3


def test_a_file_that_cannot_be_deleted_is_named(folder: Path) -> None:
    blocked = folder / "autotune.db-requests" / "demo" / "000000-dir.parquet"
    blocked.mkdir()  # unlinking a folder fails for root too
    os.utime(blocked, (1.0, 1.0))
    assert stat.S_ISDIR(blocked.stat().st_mode)
    ended = called("prune", "--study", "demo", "--keep-mb", "0", folder=folder)
    assert ended.code == 1
    assert "000000-dir.parquet cannot be deleted" in ended.err


def test_what_prune_says_in_json(folder: Path) -> None:
    url = f"sqlite:///{folder}/autotune.db"
    pruned = prune("demo", url, keep_mb=None, older_than_days=1, dry_run=True)
    assert (pruned.removed, pruned.kept, pruned.dry_run) == (3, 0, True)
    assert pruned.json()["removed_bytes"] == sum(
        path.stat().st_size for path in folder.glob("autotune.db-requests/demo/*")
    )
