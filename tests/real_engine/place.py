"""Where the real engine is on this machine, and how a server of it is started.

The environment is made by the script `environment` beside this file and lives outside the tree.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["VERSION", "RealEngine", "find"]

VERSION = "0.5.21"
HERE = Path(__file__).resolve().parent

_NEEDED = (
    *("--device", "cpu", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none"),
    # Without --sleep-on-idle the scheduler takes a whole core while nothing is asked.
    *("--disable-overlap-schedule", "--mem-fraction-static", "0.3", "--sleep-on-idle"),
    *("--max-total-tokens", "16384", "--max-running-requests", "16", "--enable-metrics"),
)

SPECULATION: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "ngram": (
        *("--speculative-algorithm", "NGRAM"),
        *("--speculative-num-draft-tokens", "4"),
        *("--speculative-ngram-max-bfs-breadth", "1"),
    ),
    "dflash": (
        *("--speculative-algorithm", "DFLASH"),
        *("--speculative-draft-model-path", "{models}/draft"),
        *("--speculative-num-draft-tokens", "8"),
    ),
}


@dataclass(frozen=True)
class RealEngine:
    """The environment that `environment` has made.

    Attributes:
        folder: The environment's own.
        models: Holds `target` and `draft`.
    """

    folder: Path
    models: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def command(
        self, *, port: int, speculation: str = "ngram", flags: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The server's command line.

        Args:
            speculation: "none", "ngram" or "dflash".
            flags: More flags; of a flag that is given twice the last one counts.
        """
        own = [word.replace("{models}", str(self.models)) for word in SPECULATION[speculation]]
        return (
            *(str(self.python), "-m", "sglang.launch_server"),
            *("--model-path", str(self.models / "target"), *_NEEDED),
            *("--host", "0.0.0.0", "--port", str(port), *own, *flags),
        )

    def environment(self, home: str) -> dict[str, str]:
        """The variables that the server needs.

        Args:
            home: A folder that it may write to.
        """
        return {
            "PYTHONPATH": str(HERE / "engine" / "stubs"),
            "PYTHONUNBUFFERED": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HOME": home,
            "PATH": f"{self.folder}/venv/bin:/usr/local/bin:/usr/bin:/bin",
        }


def find() -> RealEngine | str:
    """The real engine, or why it is not there; waits while it is being made."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    default = cache / "autotune" / f"sglang-{VERSION}"
    folder = Path(os.environ.get("AUTOTUNE_REAL_ENGINE") or default)
    lock = folder / ".lock"
    if lock.exists():
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)  # `scripts/test` makes it beside other tests
    if not (folder / ".made-from").exists():
        return f"no real engine in {folder}: tests/real_engine/environment makes it"
    models = Path(os.environ.get("AUTOTUNE_REAL_MODELS") or folder / "models")
    return RealEngine(folder, models)
