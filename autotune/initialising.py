"""`autotune init`: read a live unit, write the two files of a study, and see that they load."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.config import load_study
from autotune.drafting import Drafted, draft
from autotune.engine_units import LiveUnit
from autotune.engines import Engine, engines_to_ask, recognised, require_units
from autotune.errors import (
    AutotuneError,
    ConfigError,
    HostBusy,
    MeasurementError,
    StudyError,
    TargetError,
)
from autotune.hosts import HostPlan, open_supervisor
from autotune.launch import make_recipe
from autotune.opening import host_address
from autotune.sglang.flags import get_flag
from autotune.supervisors.base import Original, Word
from autotune.supervisors.owner import describe_owner, owner_lives

__all__ = ["Written", "write_definitions"]


@dataclass(frozen=True, slots=True)
class Written:
    """What `init` has done.

    Attributes:
        silent: Why the server could not be asked; "" when it answered.
    """

    drafted: Drafted
    study_path: Path
    objective_path: Path
    silent: str


def write_definitions(
    host: str,
    unit: str,
    *,
    folder: Path,
    name: str = "",
    engine: str = "",
    ssh_config: str = "",
    api_key_env: str = "",
    force: bool = False,
) -> Written:
    """Read one unit and write its definitions under `folder`; nothing is changed on the host.

    Args:
        engine: Name of its engine; "" asks every installed one.

    Raises:
        ConfigError: The name, a file that is there already, or the engine; nothing was contacted.
        TargetError: The host or the unit cannot be read or tuned, or is no engine's.
        StudyError: The server wants a key.
    """
    unit = unit if "." in unit else f"{unit}.service"
    if not unit.endswith(".service"):
        raise ConfigError(f"--unit {unit} is no service", hint="for example --unit llm.service")
    name = name or unit.removesuffix(".service").partition("@")[0]
    study_path = folder / "search_spaces" / f"{name}.toml"
    objective_path = folder / "objectives" / f"{name}.toml"
    _require_name(name)
    for path in (study_path, objective_path):
        if path.exists() and not force:
            raise ConfigError(
                f"{path} is there already", hint="give another --name, or --force to replace it"
            )
    ssh_config = str(Path(ssh_config).expanduser().resolve()) if ssh_config else ""
    key = _key(api_key_env)
    engines = engines_to_ask(engine)
    original = _original(host, unit, ssh_config)
    texts = original.live_argv or original.planned_argv or original.launch.texts()
    argv = tuple(Word(text) for text in texts)
    chosen = engines[engine] if engine else recognised(f"{host}: {unit}", argv, engines)
    live = LiveUnit(host, unit, "", argv, None, ssh_config, api_key_env)
    live, silent = _asked(live, chosen, key, active=original.active)
    drafted = draft(live, name, chosen)
    _require_sound(drafted, original, live)
    for path, text in ((study_path, drafted.study), (objective_path, drafted.objective)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror}",
                hint="start it in a folder of yours, the files are written below it",
            ) from error
    return Written(drafted, study_path, objective_path, silent)


def _require_name(name: str) -> None:
    if not name or "/" in name or name.startswith((".", "-")) or name.endswith(".toml"):
        raise ConfigError(f"--name {name!r} is no name for a file", hint="for example --name llm")


def _key(variable: str) -> str | None:
    if not variable:
        return None
    if not os.environ.get(variable):
        raise ConfigError(
            f"the environment variable {variable}, named by --api-key-env, is not set",
            hint=f"export {variable}=...",
        )
    return os.environ[variable]


def _original(host: str, unit: str, ssh_config: str) -> Original:
    with open_supervisor(HostPlan(host, "systemd", "", 0, unit, ssh_config=ssh_config)) as looked:
        held = looked.holder()
        if held is not None and owner_lives(held):
            raise HostBusy(
                f"{host}: {unit} is held by {describe_owner(held)}", hint="let it end first"
            )
        return looked.original()


def _asked(
    live: LiveUnit, engine: Engine, key: str | None, *, active: bool
) -> tuple[LiveUnit, str]:
    """The unit with its address and what its server says; and why it says nothing."""
    if get_flag(live.argv, "--api-key") is not None and not live.api_key_env:
        variable = re.sub(r"\W", "_", engine.name.upper()) + "_API_KEY"
        raise StudyError(
            f"{live.host}: {live.unit} runs with --api-key",
            hint=f"export it in a variable and name that: --api-key-env {variable}",
        )
    port = get_flag(live.argv, "--port")
    known = port is not None and port.isdecimal()
    number = port if known else str(require_units(engine).default_port)
    live = replace(live, base_url=f"http://{{host}}:{number}")
    if not active:
        return live, f"{live.unit} does not run"
    url = f"http://{host_address(live.host, live.ssh_config)}:{number}"
    try:
        with engine.open_server(url, api_key=key, admin_api_key=None) as server:
            return replace(live, info=server.server_info()), ""
    except (TargetError, MeasurementError) as error:
        return live, error.message


def _require_sound(drafted: Drafted, original: Original, live: LiveUnit) -> None:
    """The drafted files load, and what they call deployed is what runs.

    Raises:
        AutotuneError: They do not; nothing was written.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-init-") as scratch:
        for folder, text in (
            ("search_spaces", drafted.study),
            ("objectives", drafted.objective),
        ):
            path = Path(scratch) / folder / f"{drafted.name}.toml"
            path.parent.mkdir()
            path.write_text(text, encoding="utf-8")
        try:
            config = load_study(str(Path(scratch) / "search_spaces" / f"{drafted.name}.toml"))
        except ConfigError as error:
            raise AutotuneError(
                f"what was read of {live.unit} makes no study: {error.message}",
                hint="write the definition by hand, from search_spaces/kimi-k26.toml",
            ) from error
    make_recipe(config.space, (), original, host=live.host, info=live.info, engine=drafted.engine)
