"""The walk of a trial as the tests expect it, and what can break a link of its proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autotune.errors import (
    AutotuneError,
    CommandTimeout,
    ConnectError,
    DropInConflict,
    ErrorRateTooHigh,
    HostBusy,
    LeaseLost,
    ServerStartError,
)
from autotune.measurement import Ending, StartRecord
from autotune.testing.fake_supervisor import FakeHost, FakeRun
from autotune.trial import Notes, TrialSpec, execute
from tests.scripted import (
    COMMAND,
    Script,
    a_spec,
    log_lines,
    settings_of,
)

PROOF = (
    *("invocation", "process", "argv", "listener", "bound", "nonce"),
    *("budget: log", "budget: server_args", "budget: server_info"),
    *("topk: log", "topk: server_args", "topk: server_info"),
    *("window: log", "window: server_args", "window: server_info"),
    "generation",
)


AFTER_BUCKET = ("identity", "generate")


WALK = (
    *("claim", "identity", "apply", "stop", "start", "follow", "open_engine"),
    *("identity", "process", "expected_argv", "listener", "server_info", "generate"),
    "server_info",  # for the fingerprint
    *("open_bench", "warm_up", "answer"),
    *("measure", *AFTER_BUCKET, "measure", *AFTER_BUCKET),
    "measure",  # the first bucket again: has the server drifted?
    *("code", "identity", "close_bench", "close_engine", "release"),
)


def run(host: FakeHost, script: Script | None = None, spec: TrialSpec | None = None) -> StartRecord:
    return execute(spec or a_spec(host), (script or Script(host)).tools(), Notes())


def links(record: StartRecord) -> tuple[str, ...]:
    return tuple(link.link for link in record.proof)


def broken(record: StartRecord) -> tuple[str, ...]:
    return tuple(link.link for link in record.proof if not link.ok)


def measured(record: StartRecord) -> list[str]:
    return [bucket.key for bucket in record.buckets]


STEPS: list[tuple[str, AutotuneError, Ending]] = [
    ("claim", LeaseLost("the lease is not ours any more"), Ending.FAILED),
    ("apply", DropInConflict("somebody else changed the unit"), Ending.FAILED),
    ("stop", HostBusy("the port is still held"), Ending.FAILED),
    ("start", ServerStartError("refused", log_tail=("error: x",)), Ending.INFEASIBLE),
    ("start", HostBusy("the port is held"), Ending.FAILED),
    ("follow", ConnectError("the host is gone"), Ending.FAILED),
    ("process", CommandTimeout("no answer"), Ending.FAILED),
    ("listener", ConnectError("the host is gone"), Ending.FAILED),
    ("server_info", ConnectError("refused"), Ending.FAILED),
    ("generate", CommandTimeout("no answer"), Ending.FAILED),
    ("warm_up", ErrorRateTooHigh("too many"), Ending.FAILED),
    ("answer", ErrorRateTooHigh("too many"), Ending.FAILED),
    ("measure", ErrorRateTooHigh("too many"), Ending.FAILED),
    ("code", ErrorRateTooHigh("too many"), Ending.FAILED),
]


def other_argv(host: FakeHost, script: Script) -> None:
    host.script = lambda launch: FakeRun(log_lines(settings_of(launch)), argv=COMMAND)


def foreign_listener(host: FakeHost, script: Script) -> None:
    host.script = lambda launch: FakeRun(log_lines(settings_of(launch)), listens=False)


def old_nonce_in_log(host: FakeHost, script: Script) -> None:
    host.script = lambda launch: FakeRun(
        log_lines({**settings_of(launch), "weight_version": "made-up-2-before"})
    )


def old_nonce_in_answer(host: FakeHost, script: Script) -> None:
    script.info = lambda shown: {**shown, "weight_version": "made-up-2-before"}


def old_process_generates(host: FakeHost, script: Script) -> None:
    script.generation = lambda answer: replace(answer, weight_version="made-up-2-before")


def no_token(host: FakeHost, script: Script) -> None:
    script.generation = lambda answer: replace(answer, completion_tokens=0)


def window_ignored(host: FakeHost, script: Script) -> None:
    """Unit, argv and settings are right; the draft runner says None and False."""
    host.script = lambda launch: FakeRun(log_lines(settings_of(launch), window=None))


def window_null_in_answer(host: FakeHost, script: Script) -> None:
    script.info = lambda shown: {**shown, "speculative_draft_window_size": None}


def budget_differs(host: FakeHost, script: Script) -> None:
    script.info = lambda shown: {**shown, "speculative_ddtree_budget": 8}


def shown_nowhere(host: FakeHost, script: Script) -> None:
    def without(shown: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in shown.items() if "topk" not in key}

    script.info = without
    host.script = lambda launch: FakeRun(
        [
            line.replace("speculative_ddtree_topk_cap", "unknown").replace("topk_cap", "other")
            for line in log_lines(settings_of(launch))
        ]
    )


FAULTS: list[tuple[Callable[[FakeHost, Script], None], str]] = [
    (other_argv, "argv"),
    (foreign_listener, "listener"),
    (old_nonce_in_log, "nonce"),
    (old_nonce_in_answer, "nonce"),
    (old_process_generates, "generation"),
    (no_token, "generation"),
    (window_ignored, "window: log"),
    (window_null_in_answer, "window: server_info"),
    (budget_differs, "budget: server_info"),
    (shown_nowhere, "topk: engine"),
]
