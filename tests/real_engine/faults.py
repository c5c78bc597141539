"""Start-up failures of the real engine, provoked by the value of a tuned flag.

A program of the user stands between the unit and the engine: for some draft token counts it spoils
the command line in one way that is known to end a start.  `once` spoils only the first start with
that count, so that the second try of a failed trial serves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.reading import load_stored
from autotune.repository import StoredTrial
from autotune.sglang.decisive import CLOSING
from tests.real_engine import service
from tests.real_engine.place import RealEngine
from tests.real_engine.studies import SMALL_OBJECTIVE, RealStudy
from tests.testhost import SystemdHost

__all__ = ["FAULTS", "PROGRAM", "Fault", "Provoked", "install_program", "provoke"]

PROGRAM = "/srv/sglang-spoiled"
_TIME = re.compile(r"^\[[^\]]*\] ")


@dataclass(frozen=True)
class Fault:
    """One way to spoil a start.

    Attributes:
        draft_tokens: The value of the tuned flag that provokes it.
        flags: Added to the command line; `{models}` is the folder of the models.
        kind: Class of the error that must come of it.
        words: What the failure must quote.
        state: State of the trial.
        hold_port: Somebody else listens on the server's port and never answers.
    """

    name: str
    draft_tokens: int
    flags: tuple[str, ...]
    kind: str
    words: str
    state: str = "infeasible"
    hold_port: bool = False


_DFLASH = ("--speculative-algorithm", "DFLASH")
_DRAFT = ("--speculative-draft-model-path", "{models}/draft")

FAULTS = (
    Fault("unknown-flag", 2, ("--no-such-flag",), "UnitError", "--no-such-flag", "failed"),
    Fault(
        "bad-value",
        3,
        ("--speculative-num-draft-tokens", "abc"),
        "ServerStartError",
        "invalid int value: 'abc'",
    ),
    Fault(
        "unknown-algorithm",
        5,
        ("--speculative-algorithm", "NOPE"),
        "ServerStartError",
        "Unknown speculative algorithm name",
    ),
    Fault("missing-model", 6, ("--model-path", "/models/not-there"), "UnitError", "file", "failed"),
    Fault("missing-draft", 7, _DFLASH, "ServerStartError", "--speculative-draft-model-path"),
    Fault(
        "block-mismatch",
        8,
        (*_DFLASH, *_DRAFT, "--speculative-dflash-block-size", "4"),
        "ServerStartError",
        "they differ",
    ),
    Fault(
        "zero-draft-tokens",
        9,
        (*_DFLASH, *_DRAFT, "--speculative-num-draft-tokens", "0"),
        "ServerStartError",
        "num_draft_tokens=0",
    ),
    Fault(
        "memory-too-small",
        10,
        ("--max-total-tokens", "0"),
        "ServerStartError",
        "--mem-fraction-static",
    ),
    Fault("port-in-use", 11, (), "HostBusy", "address already in use", "failed", hold_port=True),
)

_TEXT = """\
#!{python}
# Starts the engine; spoils its command line for some draft token counts, some in one start only.
import json, os, pathlib, runpy, socket, subprocess, sys
words = sys.argv[1:]
given = words[len(words) - 1 - words[::-1].index("--speculative-num-draft-tokens") + 1]
fault = json.loads({faults!r}).get(given)
# A start is known by its nonce: the service manager may run it more than once.
nonce = words[words.index("--weight-version") + 1] if "--weight-version" in words else ""
mark = pathlib.Path("/var/lib/sglang", "spoiled-" + given)
if fault is not None and fault["once"] and not mark.exists():
    mark.write_text(nonce)
if fault is not None and (not fault["once"] or mark.read_text() == nonce):
    words += fault["flags"]
    if fault["hold_port"]:
        port = int(words[words.index("--port") + 1])
        held = socket.create_server(("0.0.0.0", port))
        os.set_inheritable(held.fileno(), True)
        subprocess.Popen(["sleep", "600"], close_fds=False)
# In this process: its command line must stay the one that systemd was given.
sys.argv[1:] = words
if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
"""


def install_program(host: SystemdHost, engine: RealEngine) -> str:
    """Write the program; the unit starts it in place of the engine's Python."""
    faults = {
        str(fault.draft_tokens): {
            "flags": [word.replace("{models}", str(engine.models)) for word in fault.flags],
            "hold_port": fault.hold_port,
            "once": fault.state == "failed",
        }
        for fault in FAULTS
    }
    text = _TEXT.format(python=str(engine.python), faults=json.dumps(faults))
    host.write(PROGRAM, text, mode=0o755)
    return PROGRAM


@dataclass(frozen=True)
class Provoked:
    """What came of one fault.

    Attributes:
        told_s: From the line that the failure quotes, as the journal dates it, to the verdict.
        visible_s: The same from when the failure could be seen: from the end of the process, or
            from the line with which the engine gives up, where either came after the line that
            tells the cause; until then that line need not be fatal (a caught exception, say).
        again: State of the second try of a failed trial; "" where there is none.
    """

    fault: Fault
    state: str
    kind: str
    message: str
    told_s: float | None
    visible_s: float | None
    again: str

    @property
    def problem(self) -> str:
        """What is wrong with the verdict, "" when nothing is."""
        wanted, seen = (self.fault.state, self.fault.kind), (self.state, self.kind)
        if wanted != seen:
            return f"{self.fault.name} is {seen}, not {wanted}: {self.message}"
        if self.fault.words not in self.message:
            return f"{self.fault.name}: no {self.fault.words!r} in {self.message!r}"
        if self.state == "failed" and self.again not in ("complete", "pruned"):
            return f"{self.fault.name}: the second try is {self.again or 'missing'}"
        return ""


def provoke(
    host: SystemdHost, engine: RealEngine, folder: Path, faults: Sequence[Fault] = FAULTS
) -> list[Provoked]:
    """Run a study whose points provoke the faults; the host is clean before."""
    program = install_program(host, engine)
    service.install(host, engine, speculation="ngram", program=program)
    study = RealStudy(host, folder, "sglang-cpu-ngram")
    points = [[fault.draft_tokens, 1] for fault in faults]
    tries = sum(fault.state == "failed" for fault in faults)
    study.define_real(
        objective=SMALL_OBJECTIVE,
        lines={
            "trials": f"trials = {1 + len(faults) + tries}\nsame_failure_most = 50",
            "enqueue": f"enqueue = {points}",
            "finalists": "finalists = 0",
        },
    )
    ended = study.run("run")
    if ended.returncode != 0:
        raise AssertionError(ended.stdout + ended.stderr)
    stored = load_stored(str(study.file), f"sqlite:///{study.database}")
    logged = _journal(host)
    return [_provoked(fault, stored.trials, logged) for fault in faults]


def _provoked(
    fault: Fault, trials: Sequence[StoredTrial], logged: Sequence[tuple[float, str]]
) -> Provoked:
    own = [
        (trial, start)
        for trial in trials
        for start in trial.starts[:1]
        if trial.parameters["draft_tokens"] == fault.draft_tokens
        and trial.parameters["breadth"] == 1
    ]
    trial, start = own[0]
    record = start.record
    failure = record.failure if record else None
    if record is None or failure is None:
        return Provoked(fault, str(trial.state), "", "", None, None, "")
    within = [one for one in logged if record.started_at_s <= one[0] <= record.ended_at_s]
    lines = [at_s for at_s, text in within if fault.words in text]
    again = next((str(one.state) for one, _ in own[1:] if one.retry_of == trial.number), "")
    told_s = visible_s = None
    if lines:
        # Only what comes after the cause: a start begins with the stop of the server before.
        after = [one for one in within if one[0] >= lines[0]]
        stops = (at_s for at_s, text in after if text.startswith("Stopping "))
        by_itself_s = min(stops, default=record.ended_at_s)
        signs = (at_s for at_s, text in after if _gives_up(text) and at_s <= by_itself_s)
        told_s = record.ended_at_s - lines[0]
        visible_s = record.ended_at_s - min(signs, default=lines[0])
    return Provoked(
        fault, str(trial.state), failure.kind, failure.message, told_s, visible_s, again
    )


def _gives_up(text: str) -> bool:
    return "Main process exited" in text or bool(CLOSING.match(_TIME.sub("", text)))


def _journal(host: SystemdHost) -> list[tuple[float, str]]:
    """What the unit logged: Unix seconds and text."""
    raw = host.run(
        f"journalctl -u {service.UNIT} --no-pager --all -o json"
        " --output-fields=MESSAGE,__REALTIME_TIMESTAMP"
    ).stdout
    found = []
    for line in raw.splitlines():
        entry = json.loads(line)
        if isinstance(entry.get("MESSAGE"), str):
            found.append((int(entry["__REALTIME_TIMESTAMP"]) / 1e6, entry["MESSAGE"]))
    return found
