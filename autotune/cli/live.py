"""The live view of a run: a table that moves on a terminal, calm plain lines elsewhere."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.live import Live as RichLive
from rich.table import Table
from sqlalchemy.engine import make_url

from autotune.audience import Watcher
from autotune.cli.console import Console
from autotune.cli.options import print_json
from autotune.cli.tables import shown
from autotune.concluding import Conclusion
from autotune.config import StudyConfig
from autotune.definitions import folder_roots
from autotune.matters import matters
from autotune.measurement import BucketMeasurement, StartRecord
from autotune.objective import Score
from autotune.repository import StoredStudy
from autotune.storage import DEFAULT_URL
from autotune.trial import Phase, TrialSpec
from autotune.warming import Warmed

__all__ = [
    "Live",
    "shown",
    "view",
]


_COUNTED = ("complete", "infeasible", "pruned")
"""Endings that spend the budget of trials."""


@dataclass
class _Row:
    """One host as it is shown."""

    trial: str = "-"
    parameters: str = ""
    phase: str = "waiting"
    since_s: float = field(default_factory=time.monotonic)
    buckets: int = 0
    last: str = ""


class Live:
    """Takes events of a run; draws them when the output is a terminal."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self._as_json = as_json
        self._rows: dict[str, _Row] = {}
        self._loads_s: dict[str, float] = {}
        self._best: tuple[float, str] | None = None
        self._counted: set[int] = set()
        self._total: int | None = None
        self._began_s = time.monotonic()
        self._gpus = 1
        self._in_tok_per_s = True
        self._buckets = 0
        self._screen: RichLive | None = None
        self._program = _program()
        self._where = ""

    # -- events -----------------------------------------------------------------------------------
    def opened(self, config: StudyConfig, stored: StoredStudy, *, again: int, storage: str) -> None:
        self._where = _where(config, storage)
        self._total = config.study.trials
        self._gpus = config.service.gpus_per_host
        self._in_tok_per_s = config.score.aggregate != "geometric"
        self._buckets = len(config.workload.buckets)
        for trial in stored.trials:
            for start in trial.starts:
                if start.record is not None and start.record.load_s > 0:
                    self._loads_s[start.host] = start.record.load_s
        self._counted = {t.number for t in stored.trials if t.state in _COUNTED}
        self._say(
            f"study {config.name}: {len(self._counted)} of {self._total or 'any'} trials done"
        )
        if self._total is not None and len(self._counted) >= self._total:
            self._say(
                "the budget of trials is spent: only what is missing of the final rounds and the "
                f"verdict follows; --trials {self._total + 10} would search on"
            )
        if again:
            self._say(f"{again} unfinished trials of a killed run are queued again")
        if self._console.is_terminal and not self._as_json:
            self._screen = RichLive(
                console=self._console, get_renderable=self._table, refresh_per_second=2
            )
            self._screen.start()

    def watcher(self, config: StudyConfig) -> Watcher:
        return Watcher(
            started=self._started, phase=self._phase, bucket=self._bucket, ended=self._ended
        )

    def restoring(self, hosts: tuple[str, ...]) -> None:
        for host in hosts:
            self._row(host).phase = "restoring"
        self._say(f"restoring {', '.join(hosts)}")

    def warmed(self, earlier: str, taken: Warmed) -> None:
        self._say(f"{taken.taken} trials of study {earlier} are known to the search")
        for reason in taken.left:
            self._say(f"  left out: {reason}")

    def over(self, reason: str) -> None:
        self.close()
        if self._as_json:
            print_json({"over": reason})
            return
        self._say(reason)
        self._say("a larger --trials goes on")

    def concluded(self, stored: StoredStudy, verdict: Conclusion, *, report: Path) -> None:
        self.close()
        if self._as_json:
            print_json({"study": stored.name, "verdict": asdict(verdict), "report": str(report)})
            return
        self._say(f"verdict: {verdict.sentence}")
        for sentence in matters(asdict(verdict)):
            self._say(sentence)
        self._say(f"configuration: {shown(verdict.parameters)} (trial {verdict.trial})")
        self._say(f"report: {report.resolve()}")
        self._say(f"next: {self._program} export {self._where} --format flags")

    def left(self, study: str, *, stopped: bool) -> None:
        self.close()
        if stopped and self._where:  # before that there is nothing to go on with
            self._say(f"stopped; next: {self._program} run {self._where} goes on")
        elif not stopped:
            self._say(f"the final rounds of {study} are measured by another run")

    def close(self) -> None:
        if self._screen is not None:
            self._screen.stop()
            self._screen = None

    # -- inside -----------------------------------------------------------------------------------
    def _row(self, host: str) -> _Row:
        return self._rows.setdefault(host, _Row())

    def _started(self, spec: TrialSpec) -> None:
        parameters = shown({intent.name: intent.value for intent in spec.intents})
        self._rows[spec.plan.host] = _Row(str(spec.number), parameters, "apply")

    def _phase(self, spec: TrialSpec, phase: Phase) -> None:
        row = self._row(spec.plan.host)
        share = f" {phase.progress:.0%}" if phase.progress is not None else ""
        text = f"{phase.name}{share} {phase.detail}".strip()
        if text.split()[0] != row.phase.split()[0]:
            row.since_s = time.monotonic()
        row.phase = text

    def _bucket(self, spec: TrialSpec, bucket: BucketMeasurement) -> None:
        row = self._row(spec.plan.host)
        row.buckets += 1
        width = bucket.interval.half_width / bucket.output_tok_per_s if bucket.valid else None
        about = f" ±{width:.1%}" if width is not None else ", not valid"
        row.last = f"{bucket.key}: {bucket.output_tok_per_s:.0f} tok/s{about}"

    def _ended(self, spec: TrialSpec, record: StartRecord, score: Score | None) -> None:
        host = spec.plan.host
        parameters = shown({intent.name: intent.value for intent in spec.intents})
        self._rows[host] = _Row()
        self._loads_s[host] = record.load_s
        if record.ending in _COUNTED:
            self._counted.add(spec.number)
        is_reference = spec.role == "reference"
        if score is not None:
            against = "" if is_reference else f", {score.ratio - 1:+.1%} against the reference"
            low, high = score.interval.low, score.interval.high
            places, unit = (".1f", " tok/s") if self._in_tok_per_s else (".3f", "")
            said = f"{score.value:{places}}{unit} [{low:{places}}, {high:{places}}]{against}"
            better = self._best is None or score.ratio > self._best[0]
            if better and not score.violations and not is_reference:
                self._best = (score.ratio, parameters)
        else:
            reason = f": {record.failure.message}" if record.failure else ""
            said = f"{record.ending}{reason}"
        if record.lossless is not None and record.lossless.reason and record.failure is None:
            said += f"; {record.lossless.verdict}: {record.lossless.reason}"
        role = "" if spec.role == "search" else f", {spec.role}"
        self._say(
            f"trial {spec.number}{role} on {host} ({parameters}): {said}; "
            f"load {record.load_s:.0f} s, measured {record.measure_s:.0f} s"
        )

    def _say(self, text: str) -> None:
        # Who reads along may leave (`| head`); that must not stop a study.
        with suppress(OSError):
            if self._as_json:
                print(text, file=sys.stderr, flush=True)
            else:
                self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        hours = (time.monotonic() - self._began_s) / 3600 * len(self._rows) * self._gpus
        best = f"best observed {self._best[0] - 1:+.1%} ({self._best[1]})" if self._best else ""
        done = f"{len(self._counted)} of {self._total} trials, " if self._total else ""
        title = f"{done}{hours:.2f} GPU-hours in this run; {best}".rstrip("; ")
        table = Table(title=title, title_justify="left")
        for column in ("host", "trial", "parameters", "phase", "for", "buckets", "last bucket"):
            table.add_column(column)
        for host, row in sorted(self._rows.items()):
            spent_s = time.monotonic() - row.since_s
            expected = self._loads_s.get(host)
            eta = f" of about {expected:.0f} s" if expected and "load" in row.phase else ""
            table.add_row(
                host,
                row.trial,
                row.parameters,
                row.phase,
                f"{spent_s:.0f} s{eta}",
                f"{row.buckets} of {self._buckets}" if row.buckets else "",
                row.last,
            )
        return table


def _program() -> str:
    """How this program was called, for a line that can be pasted."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{sys.executable} -m autotune"
    return "autotune" if shutil.which("autotune") else str(called)


def _where(config: StudyConfig, storage: str) -> str:
    """The options that name this study again, from this folder; a password is not shown."""
    local = config.path.parent.resolve() == (Path.cwd() / "search_spaces").resolve()
    packaged = any(config.path.parent == root for root in folder_roots("search_spaces"))
    study = config.name if local or packaged else str(config.path)
    options = f"--study {shlex.quote(study)}"
    if storage == DEFAULT_URL or os.environ.get("AUTOTUNE_STORAGE"):
        return options
    return f"{options} --storage {shlex.quote(make_url(storage).render_as_string())}"


@contextmanager
def view(*, as_json: bool) -> Iterator[Live]:
    """A live view that leaves the terminal as it was."""
    live = Live(Console(), as_json=as_json)
    try:
        yield live
    finally:
        live.close()
