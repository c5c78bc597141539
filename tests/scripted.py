"""A scripted service for tests of the core: what its log says, what it answers, what was called.

SETTINGS       what the engine reports of one launch, read from its flags
a_host         a `FakeHost` whose starts log what SGLang logs
Script         engine and bench over a `FakeHost`; their calls stand in its list of calls
a_spec         one trial of that service
ScriptedLog    a log that spends the time of a fake clock
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from autotune.answers import Answers
from autotune.ddtree import CONSTRAINTS
from autotune.errors import AutotuneError
from autotune.hosts import HostPlan
from autotune.launch import Recipe, make_recipe
from autotune.measure_settings import MeasureSettings
from autotune.measurement import BucketMeasurement, CodingResult
from autotune.parameter import ParameterKind
from autotune.pruning import PruneRule
from autotune.sglang.flags import get_flag
from autotune.sglang.server import Generation, ServerInfo
from autotune.space import Parameter, SearchSpace, Values
from autotune.supervisors.base import Launch, Lease, Original, Owner, Word
from autotune.supervisors.log_lines import LogLine
from autotune.testing.fake_supervisor import FakeHost, FakeRun, FakeSupervisor
from autotune.trial import Tools, TrialSpec
from autotune.workload import Bucket, Workload
from tests.builders import a_bucket

__all__ = [
    "BUCKETS",
    "COMMAND",
    "DEPLOYED",
    "OWNER",
    "WORKLOAD",
    "Clock",
    "Item",
    "Script",
    "ScriptedLog",
    "a_host",
    "a_plan",
    "a_recipe",
    "a_space",
    "a_spec",
    "an_original",
    "log_lines",
    "settings_of",
    "some_answers",
]

PORT = 30000
COMMAND = (
    *("python", "-m", "sglang.launch_server", "--port", str(PORT)),
    *("--speculative-ddtree-budget", "8", "--speculative-ddtree-topk-cap", "4"),
)
DEPLOYED: Values = {"budget": 8, "topk": 4, "window": None}
BUCKETS = (Bucket(1024, 8, 128, 0.6), Bucket(60, 1, 128, 0.4))
WORKLOAD = Workload(BUCKETS)
OWNER = Owner("made-up", "driver-1", "boot", 4242, 9.0, 1_767_225_600.0)
GOOD_TEXT = "def add(a, b):\n    return a + b\n"

_FLAGS = {
    "speculative_ddtree_budget": "--speculative-ddtree-budget",
    "speculative_ddtree_topk_cap": "--speculative-ddtree-topk-cap",
    "speculative_draft_window_size": "--speculative-draft-window-size",
}


def a_space() -> SearchSpace:
    """Budget, top-k and window, as the shipped studies tune them."""
    return SearchSpace(
        (
            Parameter(
                "budget",
                ParameterKind.INT,
                low=1,
                high=64,
                log=True,
                deployed=8,
                flag=_FLAGS["speculative_ddtree_budget"],
            ),
            Parameter(
                "topk",
                ParameterKind.INT,
                low=1,
                high=16,
                log=True,
                deployed=4,
                flag=_FLAGS["speculative_ddtree_topk_cap"],
            ),
            Parameter(
                "window",
                ParameterKind.CATEGORICAL,
                choices=(512, 2048, None),
                deployed=None,
                flag=_FLAGS["speculative_draft_window_size"],
                aliases=("--speculative-dflash-draft-window-size",),
            ),
        ),
        (CONSTRAINTS["topk-within-budget"],),
    )


def an_original(
    *command: str,
    live: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    active: bool = True,
) -> Original:
    """A service as it was found; `live` is what the kernel shows, by default the same words."""
    words = command or COMMAND
    return Original(
        launch=Launch(tuple(Word(text) for text in words)),
        live_argv=(tuple(words) if live is None else tuple(live)) if active else (),
        live_environ=environ or {},
        active=active,
        enabled="",
        files={},
        fragment="",
        taken_at_s=0.0,
    )


def a_recipe(space: SearchSpace | None = None) -> Recipe:
    return make_recipe(
        space or a_space(),
        (),
        an_original(),
        host="fake",
        info=ServerInfo({**settings_of(Launch(tuple(map(Word, COMMAND)))), "weight_version": "x"}),
    )


def settings_of(launch: Launch) -> dict[str, Any]:
    """What an honest engine reports of a launch."""
    values: dict[str, Any] = {}
    for key, flag in _FLAGS.items():
        text = get_flag(launch.argv, flag, ("--speculative-dflash-draft-window-size",))
        if flag != "--speculative-draft-window-size":
            text = get_flag(launch.argv, flag)
        values[key] = None if text is None else int(text)
    values["weight_version"] = get_flag(launch.argv, "--weight-version") or "default"
    values["random_seed"] = 501119508
    return values


def log_lines(
    settings: Mapping[str, Any], *, window: object = "as asked", ready: bool = True
) -> list[str]:
    """The log of one start.

    Args:
        window: What the draft runner says of its window, by default what was asked for.
    """
    stamp = "[2026-11-29 12:50:07]"
    shown = settings["speculative_draft_window_size"] if window == "as asked" else window
    arguments = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    lines = [
        f"{stamp} server_args=ServerArgs({arguments})",
        f"{stamp} Initialized DFLASH draft runner. draft_window_size={shown}, "
        f"compact_cache={shown is not None}",
        f"{stamp} Initialized DDTree worker. "
        f"tree_budget={settings['speculative_ddtree_budget']}, "
        f"topk_cap={settings['speculative_ddtree_topk_cap']}",
        "INFO:     Started server process [77]",
        f"INFO:     Uvicorn running on http://127.0.0.1:{PORT} (Press CTRL+C to quit)",
    ]
    return [*lines, f"{stamp} The server is fired up and ready to roll!"] if ready else lines


def a_host(**changes: Any) -> FakeHost:
    """A running service, deployed parameters; every start of it is honest and gets ready."""
    host = FakeHost(
        command=COMMAND,
        port=PORT,
        active=True,
        script=lambda launch: FakeRun(log_lines(settings_of(launch))),
    )
    for name, value in changes.items():
        setattr(host, name, value)
    return host


@dataclass
class Script:
    """Engine and bench of a `FakeHost`; `host.fail(NAME, error)` makes one of their calls raise.

    Calls: open_engine, server_info, generate, close_engine, open_bench, warm_up, answer, measure,
    code, close_bench.

    Attributes:
        info, generation, bucket, texts: What is answered; tests replace them.
    """

    host: FakeHost
    info: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    generation: Callable[[Generation], Generation] = lambda generation: generation
    bucket: Callable[[BucketMeasurement], BucketMeasurement] = lambda bucket: bucket
    texts: Mapping[str, str] = field(default_factory=lambda: {"greedy/0": GOOD_TEXT})
    coding: CodingResult = field(
        default_factory=lambda: CodingResult({"a/0": "passed"}, 1, 0, {"passed": 1})
    )

    def tools(self, supervisor: FakeSupervisor | None = None) -> Tools:
        return Tools(supervisor or FakeSupervisor(self.host), self._open_engine, self._open_bench)

    @contextmanager
    def _open_engine(self, spec: TrialSpec) -> Iterator[Script]:
        self.host.record("open_engine")
        try:
            yield self
        finally:
            self.host.record("close_engine")

    @contextmanager
    def _open_bench(self, spec: TrialSpec) -> Iterator[Script]:
        self.host.record("open_bench")
        try:
            yield self
        finally:
            self.host.record("close_bench")

    def server_info(self) -> ServerInfo:
        self.host.record("server_info")
        return ServerInfo(dict(self.info(settings_of(self._running()))))

    def generate(self, text: str, *, max_new_tokens: int) -> Generation:
        self.host.record("generate")
        version = settings_of(self._running())["weight_version"]
        return self.generation(Generation(" return a + b", max_new_tokens, version, "length"))

    def give_up(self, reason: AutotuneError) -> None:
        self.host.record("give_up", reason)

    def warm_up(self) -> None:
        self.host.record("warm_up")

    def answer(self, answers: Answers) -> Mapping[str, str]:
        self.host.record("answer")
        return self.texts

    def measure(self, bucket: Bucket) -> BucketMeasurement:
        self.host.record("measure", bucket.key)
        return self.bucket(
            a_bucket(bucket.context_tokens, bucket.concurrency, 100.0, weight=bucket.weight)
        )

    def code(self, answers: Answers) -> CodingResult:
        self.host.record("code")
        return self.coding

    def _running(self) -> Launch:
        return self.host.launch or self.host.found()


def a_plan(host: str = "fake", **changes: Any) -> HostPlan:
    return HostPlan(
        host=host,
        supervisor="process",
        base_url=f"http://127.0.0.1:{PORT}",
        port=PORT,
        load_timeout_s=changes.pop("load_timeout_s", 60.0),
        **changes,
    )


def some_answers(**changes: Any) -> Answers:
    values: dict[str, Any] = {
        "greedy": {"greedy/0": "Write add."},
        "greedy_tokens": 64,
        "reference": {"greedy/0": GOOD_TEXT},
        "samples": (),
        "coding_tokens": 64,
        "concurrency": 1,
        "timeout_s": 1.0,
        "allow_weak": True,
        "own": (None,),
    }
    return Answers(**{**values, **changes})


def a_spec(
    host: FakeHost,
    values: Values | None = None,
    *,
    recipe: Recipe | None = None,
    prune: PruneRule | None = None,
    answers: Answers | None = None,
    buckets: tuple[Bucket, ...] = BUCKETS,
    plan: HostPlan | None = None,
) -> TrialSpec:
    """One trial on a leased host; the calls that made the lease are not in its list."""
    recipe = recipe or a_recipe()
    point = {**DEPLOYED, "budget": 16, "window": 2048} if values is None else values
    lease: Lease = host.lease or _leased(host)
    nonce = recipe.nonce("made-up-3-0badcafe")
    return TrialSpec(
        study="made-up",
        number=3,
        claim_id="c" * 32,
        plan=plan or a_plan(),
        lease=lease,
        launch=recipe.launch(point, nonce),
        intents=recipe.intents(point),
        nonce=nonce,
        buckets=buckets,
        measure=MeasureSettings(),
        answers=answers or some_answers(),
        prompts_seed=7,
        prune=prune,
    )


def _leased(host: FakeHost) -> Lease:
    supervisor = FakeSupervisor(host)
    lease = supervisor.take_lease(OWNER, supervisor.original(), restore_after_s=300.0)
    host.calls.clear()
    return lease


Item = str | LogLine | float | tuple[float, str] | Callable[[], object]
"""One item of a `ScriptedLog`."""


class Clock:
    """Seconds that pass only when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


class ScriptedLog:
    """A log follower: text is a line, a function is an event, a number of seconds is silence.

    A pair is a line that came after so many seconds.

    Waiting spends the clock's time; when nothing is left to read, the log is silent.
    """

    def __init__(self, clock: Clock, *items: Item) -> None:
        self._clock = clock
        self._items = list(items)

    def read(self, timeout_s: float) -> LogLine | None:
        if not self._items:
            self._clock.now_s += timeout_s
            return None
        item = self._items.pop(0)
        if isinstance(item, LogLine):
            return item
        if isinstance(item, tuple):
            seconds, item = item
            self._clock.now_s += seconds
        if isinstance(item, str):
            return LogLine(item, self._clock.now_s)
        if callable(item):
            item()
            return None
        self._clock.now_s += item
        return None

    def __enter__(self) -> ScriptedLog:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is open."""
