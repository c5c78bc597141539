"""Shapes of units from `tests/cases/units/`, installed side by side on one host.

A case is one text file::

    # What the shape is, one sentence.
    # expect: tuned                        or `refused: REGEX`
    # KEY: VALUE                           start, first, then, last, unit, budget, window, mode
    --- /path/on/the/host [mode]
    text of that file

`{unit}`, `{name}` (of the case), `{port}`, `{engine}` (a small server that takes any flag),
`{python}`, `{server}` and `{limited}` (a user) are filled in.  `start: no` leaves the unit stopped,
`first` is run before the start, `then` after it and `last` right before the test looks at the unit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.parameter import Parameter, ParameterKind
from autotune.sglang.server import ServerInfo
from autotune.space import SearchSpace
from autotune.testing import tiny_server
from tests.testhost import SystemdHost

__all__ = [
    "CASES",
    "INFO",
    "Shape",
    "UnitCase",
    "install_all",
    "read_case",
    "run_last",
    "space_of",
    "table",
]

FOLDER = Path(__file__).parents[1] / "cases" / "units"
CASES = sorted(FOLDER.glob("*.case"))
FIRST_PORT = 31000

INFO = ServerInfo(
    {
        "speculative_ddtree_budget": None,
        "speculative_ddtree_topk_cap": None,
        "speculative_draft_window_size": None,
        "weight_version": "default",
        "random_seed": 1,
        "log_level": "info",
        "port": 30000,
    }
)


"""An engine that names its settings and has chosen none by itself."""


@dataclass(frozen=True)
class UnitCase:
    """One case file.

    Attributes:
        expect: `tuned`, or the sentence that refuses it, as a regular expression.
        files: Path on the host: text and mode.
    """

    name: str
    title: str
    expect: str
    head: Mapping[str, str]
    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def tuned(self) -> bool:
        return self.expect == "tuned"

    @property
    def starts(self) -> bool:
        return self.head.get("start") != "no"


def read_case(path: Path) -> UnitCase:
    """Read a case file."""
    head, *parts = re.split(r"(?m)^--- ", path.read_text(encoding="utf-8"))
    title, *lines = (line.removeprefix("# ") for line in head.splitlines())
    keys = dict(line.split(": ", 1) for line in lines)
    files = {}
    for part in parts:
        first, _, text = part.partition("\n")
        place, _, mode = first.partition(" ")
        files[place] = (text, int(mode or "644", 8))
    expect = keys.pop("expect")
    return UnitCase(path.stem, title, expect.removeprefix("refused: "), keys, files)


@dataclass(frozen=True)
class Shape:
    """A case on a host."""

    case: UnitCase
    host: SystemdHost
    port: int

    @property
    def unit(self) -> str:
        return self.fill(self.case.head.get("unit", "{name}.service"))

    def fill(self, text: str) -> str:
        server = tiny_server.__file__
        unit = self.case.head.get("unit", "{name}.service")
        for mark, value in (
            ("{unit}", unit),
            ("{name}", self.case.name),
            ("{engine}", f"{sys.executable} -I -S {server}"),
            ("{python}", sys.executable),
            ("{server}", server),
            ("{port}", str(self.port)),
            ("{limited}", self.host.limited_user),
        ):
            text = text.replace(mark, value)
        return text

    def show(self, name: str) -> str:
        asked = f"systemctl show --property={name} --value -- '{self.unit}'"
        return self.host.run(asked).stdout.strip()


def install_all(host: SystemdHost) -> dict[str, Shape]:
    """Install every case and start what is to run; returns when all of it listens."""
    shapes = {
        path.stem: Shape(read_case(path), host, FIRST_PORT + index)
        for index, path in enumerate(CASES)
    }
    script = []
    for shape in shapes.values():
        for place, (text, mode) in shape.case.files.items():
            path, body = shape.fill(place), shape.fill(text)
            mark = "END-OF-" + shape.case.name
            script.append(f"install -D -m {mode:o} /dev/stdin '{path}' <<'{mark}'\n{body}{mark}\n")
    host.run("/bin/bash -s", input="\n".join(script))
    host.run("systemctl daemon-reload")
    _each(shapes, "first")
    units = " ".join(f"'{shape.unit}'" for shape in shapes.values() if shape.case.starts)
    host.run(f"systemctl daemon-reload && systemctl start --no-block -- {units}")
    host.run(_UNTIL_NO_JOB)
    _each(shapes, "then")
    host.run(_UNTIL_NO_JOB)
    return shapes


_UNTIL_NO_JOB = 'while [ -n "$(systemctl list-jobs --no-legend)" ]; do sleep 0.05; done'


def _each(shapes: Mapping[str, Shape], key: str) -> None:
    for shape in shapes.values():
        if key in shape.case.head:
            shape.host.run(shape.fill(shape.case.head[key]))


def run_last(shape: Shape) -> None:
    """What the case wants to happen right before it is looked at."""
    if "last" in shape.case.head:
        shape.host.run(shape.fill(shape.case.head["last"]))


def space_of(case: UnitCase) -> SearchSpace:
    """Budget, top-k and window, with the deployed values of the case, and the variable if any."""
    window = case.head.get("window", "none")
    parameters = [
        Parameter(
            "budget",
            ParameterKind.INT,
            low=1,
            high=64,
            deployed=int(case.head.get("budget", "8")),
            flag="--speculative-ddtree-budget",
        ),
        Parameter(
            "topk",
            ParameterKind.INT,
            low=1,
            high=16,
            deployed=4,
            flag="--speculative-ddtree-topk-cap",
        ),
        Parameter(
            "window",
            ParameterKind.CATEGORICAL,
            choices=(512, 2048, None),
            deployed=None if window == "none" else int(window),
            flag="--speculative-draft-window-size",
            aliases=("--speculative-dflash-draft-window-size",),
        ),
    ]
    if mode := case.head.get("mode"):
        parameters.append(
            Parameter(
                "mode",
                ParameterKind.CATEGORICAL,
                choices=("on", "off", None),
                deployed=None if mode == "none" else mode,
                env="DRAFT_MODE",
            )
        )
    return SearchSpace(tuple(parameters))


def table() -> str:
    """The table of `docs/units.md`: one row for each case file."""
    rows = ["| shape | outcome | case |", "|---|---|---|"]
    for path in CASES:
        case = read_case(path)
        sentence = re.sub(r"\\(.)", r"\1", case.expect).replace(".*", " ... ").replace("|", "\\|")
        outcome = "tuned" if case.tuned else f"refused: ... {sentence.strip()} ..."
        rows.append(f"| {case.title.rstrip('.')} | {outcome} | `{path.stem}` |")
    return "\n".join(rows) + "\n"
