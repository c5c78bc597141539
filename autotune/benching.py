"""The matrix alone, against whatever serves now: nothing is started, changed or restarted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from autotune.benchmark import Benchmark, Endpoint, MeasureSettings, WindowNote
from autotune.benchmark.audit import only_clients_fault
from autotune.config import StudyConfig
from autotune.drift import drift_between
from autotune.engine_words import SGLANG_COUNTERS, CounterNames
from autotune.engines import engine_of
from autotune.errors import ConfigError, InvocationChanged, MeasurementError, UnitError
from autotune.hosts import open_supervisor
from autotune.measurement import BucketMeasurement, Drift
from autotune.open_files import allow_streams
from autotune.opening import plan_host, require_no_tuner
from autotune.sglang.server import SglangServer
from autotune.workload import Bucket

__all__ = ["Target", "bench", "serving_unit", "url_target"]


def _unwatched() -> None:
    """A server of which nothing but its address is known."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is measured as it stands.

    Attributes:
        counters: What its engine calls its counters.
        require_same: Raises when it is no longer the same start of the server.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    endpoint: Endpoint = Endpoint.CHAT
    counters: CounterNames = SGLANG_COUNTERS
    require_same: Callable[[], None] = _unwatched


def url_target(
    url: str, *, model: str | None, api_key: str | None, endpoint: Endpoint = Endpoint.CHAT
) -> Target:
    """Any OpenAI-compatible server; its first model when none is named.

    Raises:
        ConnectError: Nobody answers there.
        MeasurementError: It names no model.
    """
    base_url = url.rstrip("/").removesuffix("/v1")
    if model is None:
        with SglangServer(base_url, api_key=api_key) as server:
            models = server.models()
        if not models:
            raise MeasurementError(f"{base_url} names no model", hint="name one with --model")
        model = models[0]
    return Target(base_url, model, api_key, endpoint)


@contextmanager
def serving_unit(config: StudyConfig, host: str) -> Iterator[Target]:
    """What a study's unit serves on a host right now, watched for restarts.

    Raises:
        ConfigError: The study's service is a process of the tuner, which runs only while it tunes.
        UnitError: The unit is not active.
        HostBusy: A tuner is at work there: what serves is one of its trials.
    """
    if config.service.supervisor == "process":
        raise ConfigError(
            f"the service of study {config.name} runs only while it is tuned",
            hint="start it yourself and give --url http://127.0.0.1:PORT",
        )
    plan = plan_host(config, host)
    with open_supervisor(plan) as supervisor:
        require_no_tuner(plan, supervisor)
        before = supervisor.identity()
        if not before.invocation_id:
            raise UnitError(f"{plan.host}: {plan.unit} does not run", hint="start it")

        def require_same() -> None:
            now = supervisor.identity()
            if (now.invocation_id, now.n_restarts) != (before.invocation_id, before.n_restarts):
                raise InvocationChanged(f"{plan.host}: {plan.unit} was restarted while measured")

        target = url_target(plan.base_url, model=None, api_key=plan.api_key)
        yield replace(target, counters=engine_of(plan.engine).counters, require_same=require_same)


def bench(
    target: Target,
    buckets: tuple[Bucket, ...],
    *,
    settings: MeasureSettings,
    seed: int,
    on_window: Callable[[WindowNote], None] | None = None,
    on_bucket: Callable[[BucketMeasurement], None] = lambda bucket: None,
) -> Drift | None:
    """Measures the buckets in their order, then the first one again.

    Args:
        seed: Of the prompts: another one for each run, or the prefix cache knows them.
        on_bucket: Told of each bucket as it ends.

    Returns:
        How the first bucket changed; None with one bucket, or where one of the two is not valid.

    Raises:
        StudyError: This machine allows fewer open files than the buckets need.
        MeasurementError: A bucket could not be measured; those before it were told.
    """
    allow_streams(max((bucket.concurrency for bucket in buckets), default=0))
    with Benchmark(
        target.base_url,
        model=target.model,
        api_key=target.api_key,
        prompts_seed=seed,
        settings=settings,
        endpoint=target.endpoint,
        counter_names=target.counters,
    ) as client:

        def measured(bucket: Bucket) -> BucketMeasurement:
            one = client.measure(bucket, on_window)
            if only_clients_fault(one):
                one = client.measure(bucket, on_window)
            target.require_same()
            return one

        client.warm_up()
        first = None
        for bucket in buckets:
            one = measured(bucket)
            first = first or one
            on_bucket(one)
        if first is None or len(buckets) < 2:
            return None
        again = measured(buckets[0])
    return drift_between(first, again) if first.valid and again.valid else None
