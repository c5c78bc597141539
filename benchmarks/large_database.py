"""Time the commands that read a study, on a database with very many finished trials.

    python -m benchmarks.large_database --trials 10000 [--storage postgresql://...]

The rows are made from one pattern, in Optuna's tables and in ours, then the real command line runs:
`status`, `trials`, `report`, and `run` until it has taken the study up again; last, what the search
takes to suggest a point.  Each is to take less than 5 s, and the file of the report is to be below
6 MB; the table says which does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from optuna.distributions import distribution_to_json
from optuna.storages._rdb import models
from optuna.study import create_study

from autotune.config import load_study
from autotune.records import BucketRow, CodingRow, EvidenceRow, StartRow, StudyRow, TrialRow
from autotune.report.page import MOST_BYTES
from autotune.repository import Repository
from autotune.search import sampler_of
from autotune.sglang.masking import masked
from autotune.storage import open_engine, open_optuna, storage_url
from autotune.study import TrialStudy
from autotune.supervisors.base import Owner

LIMIT_S = 5.0
LINKS = ("invocation", "process", "argv", "listener", "bound", "nonce", "generation")
OWNER = Owner("demo", "tuner", "boot", 1, 1.0, 1.7e9)


def fill(url: str, trials: int, seed: int) -> None:
    """A study `demo` with this many complete trials on two hosts, trials 0 and 1 its references."""
    config = load_study("demo")
    engine = open_engine(url, create=True)
    Repository(engine).open_study(
        "demo",
        definition=masked(config.definition),
        fingerprint=config.fingerprint(),
        provenance={"autotune": "benchmark"},
    )
    optuna = open_optuna(url)
    study = create_study(study_name="demo", storage=optuna, direction="maximize")
    study.set_user_attr("enqueued", True)
    rng = random.Random(seed)
    points = [_point(rng) if n > 1 else dict(config.space.deployed()) for n in range(trials)]
    ratios = [rng.gauss(1.0, 0.05) if n > 1 else 1.0 for n in range(trials)]
    with engine.begin() as connection:
        _optuna_rows(connection, study._study_id, config.space.distributions(), points, ratios)
        own = connection.scalar(sa.select(StudyRow.__table__.c.id))
        assert own is not None
        _own_rows(connection, own, points, ratios, list(config.workload.buckets))
    engine.dispose()
    optuna.engine.dispose()


def _point(rng: random.Random) -> dict[str, Any]:
    budget = rng.randint(4, 64)
    return {
        "budget": budget,
        "topk": rng.randint(1, min(16, budget)),
        "window": rng.choice((None, 512, 1024, 2048)),
    }


def _insert(connection: sa.Connection, table: Any, rows: list[dict[str, Any]]) -> None:
    for first in range(0, len(rows), 5000):
        connection.execute(sa.insert(table), rows[first : first + 5000])


def _optuna_rows(
    connection: sa.Connection,
    study_id: int,
    distributions: Any,
    points: list[dict[str, Any]],
    ratios: list[float],
) -> None:
    now = datetime.now()
    numbers = range(len(points))
    trial = {"study_id": study_id, "state": "COMPLETE"}
    _insert(
        connection,
        models.TrialModel.__table__,
        [
            trial
            | {"trial_id": n + 1, "number": n, "datetime_start": now, "datetime_complete": now}
            for n in numbers
        ],
    )
    _insert(
        connection,
        models.TrialParamModel.__table__,
        [
            {
                "trial_id": n + 1,
                "param_name": name,
                "param_value": distribution.to_internal_repr(points[n][name]),
                "distribution_json": distribution_to_json(distribution),
            }
            for n in numbers
            for name, distribution in distributions.items()
        ],
    )
    _insert(
        connection,
        models.TrialValueModel.__table__,
        [
            {"trial_id": n + 1, "objective": 0, "value": ratios[n], "value_type": "FINITE"}
            for n in numbers
        ],
    )
    _insert(
        connection,
        models.TrialSystemAttributeModel.__table__,
        [
            {"trial_id": n + 1, "key": "constraints:infeasible", "value_json": "-1.0"}
            for n in numbers
        ],
    )
    host = '"demo-{}"'
    attributes = [
        {"trial_id": n + 1, "key": "host", "value_json": host.format("ab"[n % 2])} for n in numbers
    ]
    attributes += [{"trial_id": n, "key": "reference", "value_json": "true"} for n in (1, 2)]
    _insert(connection, models.TrialUserAttributeModel.__table__, attributes)


def _own_rows(
    connection: sa.Connection,
    study_id: int,
    points: list[dict[str, Any]],
    ratios: list[float],
    buckets: list[Any],
) -> None:
    numbers = range(len(points))
    at_s = 1.7e9
    _insert(
        connection,
        TrialRow.__table__,
        [
            {
                "id": n + 1,
                "study_id": study_id,
                "number": n,
                "parameters": points[n],
                "reference": n < 2,
                "retry_of": None,
                "state": "complete",
                "told": True,
                "revision": n + 1,
            }
            for n in numbers
        ],
    )
    connection.execute(sa.update(StudyRow).values(revision=len(points)))
    _insert(
        connection,
        StartRow.__table__,
        [
            {
                "id": n + 1,
                "trial_id": n + 1,
                "role": "reference" if n < 2 else "search",
                "round": 0,
                "host": f"demo-{'ab'[n % 2]}",
                "claim_id": f"{n:032x}",
                "nonce": f"demo-{n}",
                "owner": dataclasses.asdict(OWNER),
                "argv": ["python", "-m", "server", "--budget", str(points[n]["budget"])],
                "ending": "complete",
                "invocation_id": f"{n:032x}",
                "failure": None,
                "fingerprint": {"model": "made-up"},
                "texts": {"greedy/0": "def add(a, b):\n    return a + b\n"},
                "stop_s": 2.0,
                "load_s": 360.0,
                "measure_s": 600.0,
                "started_at_s": at_s + 1000 * n,
                "ended_at_s": at_s + 1000 * n + 962,
                "score": 1000 * ratios[n],
                "score_low": 980 * ratios[n],
                "score_high": 1020 * ratios[n],
                "score_ratio": ratios[n],
                "score_gate": 1.0,
                "violations": [],
            }
            for n in numbers
        ],
    )
    details = {
        "ttft_p99_ms": 90.0,
        "tpot_p99_ms": 12.0,
        "chunk_gap_ms": 9.0,
        "chunk_tokens": 3.0,
        "prompt_tokens": 60.0,
        "cached_tokens": 0,
        "server_tokens": 9000,
        "client_cpu": 0.1,
        "loop_lag_ms": 0.5,
        "warm_up_s": 3.0,
        "windows_s": 9.0,
        "windows": 9,
        "requests": 90,
        "errors": 0,
        "marks": [],
        "started_at_s": at_s,
        "reason": "",
    }
    _insert(
        connection,
        BucketRow.__table__,
        [
            {
                "start_id": n + 1,
                "context_tokens": bucket.context_tokens,
                "concurrency": bucket.concurrency,
                "output_tokens": bucket.output_tokens,
                "weight": bucket.weight,
                "output_tok_per_s": 1000 * ratios[n],
                "low": 980 * ratios[n],
                "high": 1020 * ratios[n],
                "accept_length": 3.1,
                "ttft_ms": 80.0,
                "tpot_ms": 10.0,
                "valid": True,
                "details": details,
            }
            for n in numbers
            for bucket in buckets
        ],
    )
    _insert(
        connection,
        EvidenceRow.__table__,
        [
            {
                "start_id": n + 1,
                "link": link,
                "wanted": "as asked",
                "seen": "as asked",
                "raw": "x" * 300,
                "ok": True,
                "at_s": at_s,
            }
            for n in numbers
            for link in LINKS
        ],
    )
    _insert(
        connection,
        CodingRow.__table__,
        [
            {
                "start_id": n + 1,
                "passed": 20,
                "failed": 0,
                "outcomes": {"passed": 20},
                "samples": {f"task/{i}": "passed" for i in range(20)},
                "wall_s": 9.0,
            }
            for n in numbers
        ],
    )


def timed(folder: Path, url: str, *words: str, until: str = "") -> tuple[float, str]:
    """Seconds that a command takes, to its end or to a line of its output."""
    began_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", *words],
        cwd=folder,
        env={**os.environ, "AUTOTUNE_STORAGE": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if until and until in line:
                spent_s = time.monotonic() - began_s
                process.terminate()
                process.communicate()
                return spent_s, line.strip()
        code = process.wait()
        if code:
            raise SystemExit("".join(["autotune ", " ".join(words), "\n", *lines[-20:]]))
    return time.monotonic() - began_s, f"{len(lines)} lines"


def suggested(url: str) -> tuple[float, float]:
    """Seconds from nothing in memory to the next point of the search, and from there to another."""
    config = load_study("demo")
    began_s = time.monotonic()
    study = TrialStudy(config.name, open_optuna(url), space=config.space)
    study.use(sampler_of(config, seed=config.study.seed))
    study.ask()
    first_s = time.monotonic() - began_s
    study.ask()
    return first_s, time.monotonic() - began_s - first_s


def judged(title: str, spent_s: float, said: str) -> bool:
    """Print one line; whether it missed the limit."""
    verdict = "met" if spent_s < LIMIT_S else "MISSED"
    print(f"{title:15} {spent_s:6.2f} s  (limit {LIMIT_S:g} s: {verdict})  {said}", flush=True)
    return spent_s >= LIMIT_S


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--storage", default="", help="an empty database; else a new SQLite file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--suggest", metavar="URL", help="only time two suggestions there")
    options = parser.parse_args()
    if options.suggest:
        print(*suggested(options.suggest))
        return 0
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = storage_url(options.storage or f"sqlite:///{folder / 'large.db'}")
        began_s = time.monotonic()
        fill(url, options.trials, options.seed)
        print(f"{options.trials} finished trials made in {time.monotonic() - began_s:.1f} s")
        study = ("--study", "demo")
        more = str(options.trials + 1)
        for title, words, until in (
            ("status", ("status", *study), ""),
            ("trials", ("trials", *study), ""),
            ("trials --json", ("trials", *study, "--json"), ""),
            ("report", ("report", *study), ""),
            ("resume", ("run", *study, "--trials", more), "trials done"),
        ):
            missed += judged(title, *timed(folder, url, *words, until=until))
        size = (folder / "demo-report.html").stat().st_size
        missed += size >= MOST_BYTES
        print(f"report's size   {size / 1e6:6.2f} MB (limit {MOST_BYTES / 1e6:g} MB)")
        words = (sys.executable, "-m", "benchmarks.large_database", "--suggest", url)
        alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as `autotune` sets it for itself
        said = subprocess.run(words, env=alone, stdout=subprocess.PIPE, text=True, check=True)
        first_s, next_s = map(float, said.stdout.split())
        missed += judged("suggestion", first_s, f"the next one after {next_s:.2f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
