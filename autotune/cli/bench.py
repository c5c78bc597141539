"""`autotune bench`: the matrix alone, against what serves now."""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Host, Json

if TYPE_CHECKING:
    from autotune.benching import Target
    from autotune.config import StudyConfig
    from autotune.objective_file import MeasureSection
    from autotune.workload import Bucket

__all__ = ["command"]


def command(
    study: Annotated[
        str | None,
        typer.Option(help="Study whose unit and buckets to measure.", show_default=False),
    ] = None,
    host: Host = None,
    url: Annotated[
        str | None,
        typer.Option(help="Any OpenAI-compatible server instead of a unit.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --url: model name; its first one by default.", show_default=False),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(help="With --url: variable that holds the API key.", show_default=False),
    ] = None,
    completions: Annotated[
        bool, typer.Option("--completions", help="With --url: /v1/completions, not chat.")
    ] = False,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Objective whose buckets to measure instead of the study's: a name or path.",
            show_default=False,
        ),
    ] = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option(
            help="CONTEXTxCONCURRENCYxOUTPUT instead of those buckets; may be repeated.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the prompts; drawn anew by default.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what serves now: a study's unit, or any OpenAI-compatible server.

    Nothing is started, changed or restarted. Ends with 1 when a bucket is not valid.

    Example: autotune bench --url http://127.0.0.1:30000 --bucket 1024x8x256
    """
    import secrets

    from autotune.config import load_study
    from autotune.errors import ConfigError

    if (study is None) == (url is None):
        raise ConfigError(
            "give either --study or --url",
            hint="--study S measures its unit, --url http://HOST:PORT any server",
        )
    if url is None and (model or api_key_env or completions):
        raise ConfigError(
            "--model, --api-key-env and --completions belong to --url",
            hint="leave them out: a study knows its model and its key",
        )
    if url is not None:
        if host:
            raise ConfigError("--host belongs to --study", hint="the host stands in --url")
        _require_url(url)
    config = None
    if study is not None:
        config = load_study(study).replace_budget(trials=None, hours=None, hosts=tuple(host or ()))
    buckets, measure = _what(config, objective, tuple(bucket or ()))
    key = _key(api_key_env)
    # Only now: a mistake in a file or an argument is told before anything heavy is imported.
    from autotune.cli.bench_view import run_and_show

    for target in _targets(config, url, model=model, key=key, completions=completions):
        run_and_show(
            target,
            buckets,
            settings=measure.settings(),
            seed=secrets.randbits(31) if seed is None else seed,
            as_json=as_json,
        )


def _what(
    config: StudyConfig | None, objective: str | None, cells: tuple[str, ...]
) -> tuple[tuple[Bucket, ...], MeasureSection]:
    """Buckets to measure, and how long."""
    from autotune import definitions
    from autotune.config import load_objective
    from autotune.errors import ConfigError
    from autotune.objective_file import MeasureSection

    buckets: tuple[Bucket, ...] = ()
    measure = MeasureSection()
    if objective is not None:
        file = load_objective(definitions.find("objectives", objective))
        buckets, measure = file.workload().buckets, file.measure
    elif config is not None:
        buckets, measure = config.workload.buckets, config.measure
    if cells:
        buckets = tuple(_bucket(cell, share=1 / len(cells)) for cell in cells)
    if not buckets:
        raise ConfigError("say what to measure", hint="with --objective or --bucket 1024x8x256")
    return buckets, measure


def _bucket(cell: str, *, share: float) -> Bucket:
    from autotune.errors import ConfigError
    from autotune.workload import Bucket

    words = cell.split("x")
    if len(words) != 3 or not all(re.fullmatch("0*[1-9][0-9]{0,7}", word) for word in words):
        raise ConfigError(
            f"--bucket {cell} is not CONTEXTxCONCURRENCYxOUTPUT", hint="for example 1024x8x256"
        )
    context_tokens, concurrency, output_tokens = map(int, words)
    return Bucket(context_tokens, concurrency, output_tokens, weight=share)


def _require_url(url: str) -> None:
    from urllib.parse import urlsplit

    from autotune.errors import ConfigError

    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none, a bracket that is not closed
        whole = False
    if not whole:
        raise ConfigError(
            f"--url {url} is no http address", hint="for example --url http://127.0.0.1:30000"
        )


def _key(variable: str | None) -> str | None:
    from autotune.errors import ConfigError

    if variable is not None and not os.environ.get(variable):
        raise ConfigError(
            f"the environment variable {variable}, named by --api-key-env, is not set",
            hint=f"export {variable}=...",
        )
    return os.environ[variable] if variable is not None else None


def _targets(
    config: StudyConfig | None,
    url: str | None,
    *,
    model: str | None,
    key: str | None,
    completions: bool,
) -> list[AbstractContextManager[Target]]:
    """One for each host of a study, or the one server of a URL; opened one after the other."""
    from autotune.benching import serving_unit, url_target
    from autotune.benchmark import Endpoint

    if config is not None:
        return [serving_unit(config, host) for host in config.service.hosts]
    assert url is not None
    endpoint = Endpoint.COMPLETIONS if completions else Endpoint.CHAT
    return [nullcontext(url_target(url, model=model, api_key=key, endpoint=endpoint))]
