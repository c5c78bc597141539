"""The packages of `autotune` and which of them import which, drawn from the code.

python -m tests.architecture_picture    writes the picture in docs/architecture.md anew
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import grimp

__all__ = ["PAGE", "drawn", "shown"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
_PICTURE = re.compile(
    r"(?<=<!-- made by `python -m tests.architecture_picture` -->\n\n)(?:    .+\n)+"
)


def drawn() -> str:
    """What each package is for, and under it the packages that it imports."""
    graph = grimp.build_graph("autotune", exclude_type_checking_imports=True, cache_dir=None)
    packages = sorted(folder.parent.name for folder in (ROOT / "autotune").glob("*/__init__.py"))
    imports = {
        one: [
            other
            for other in packages
            if other != one
            and graph.direct_import_exists(
                importer=f"autotune.{one}", imported=f"autotune.{other}", as_packages=True
            )
        ]
        for one in packages
    }
    reached = {
        one: sum(
            graph.chain_exists(f"autotune.{one}", f"autotune.{other}", as_packages=True)
            for other in packages
            if other != one
        )
        for one in packages
    }
    lines = []
    for one in sorted(packages, key=lambda one: (-reached[one], one)):
        lines.append(f"    {one:<12} {_purpose(one)}")
        if imports[one]:
            lines.append(f"    {'':<12}   -> {', '.join(imports[one])}")
    return "\n".join(lines) + "\n"


def _purpose(package: str) -> str:
    text = ast.get_docstring(
        ast.parse((ROOT / "autotune" / package / "__init__.py").read_text("utf-8"))
    )
    assert text, f"autotune/{package}/__init__.py does not say what it is for"
    return re.split(r"[.;](?:\s|$)|\n\n", " ".join(text.split("\n\n")[0].split()))[0]


def shown() -> str:
    """The picture as the page has it."""
    found = _PICTURE.search(PAGE.read_text("utf-8"))
    assert found, f"{PAGE} has no picture"
    return found[0]


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text("utf-8").replace(shown(), drawn()), "utf-8")
