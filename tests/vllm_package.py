"""The vLLM example of the documentation as an installed package."""

from __future__ import annotations

from pathlib import Path

__all__ = ["VLLM_EXAMPLE", "install_vllm"]

VLLM_EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "vllm"


def install_vllm(folder: Path) -> Path:
    """A folder to put on the path; the package's entry point is that of its pyproject.toml."""
    about = folder / "autotune_vllm-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: autotune-vllm\nVersion: 0.1.0\n")
    (about / "entry_points.txt").write_text("[autotune.engines]\nvllm = autotune_vllm:VLLM\n")
    (folder / "autotune_vllm.py").write_text((VLLM_EXAMPLE / "autotune_vllm.py").read_text())
    return folder
