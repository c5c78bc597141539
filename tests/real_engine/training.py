"""The trained pair of the DFLASH study, made once on this machine, beside the environment."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import replace

from tests.real_engine.place import HERE, RealEngine

__all__ = ["trained"]

ROOT = HERE.parents[1]
SCRIPT = ROOT / "benchmarks" / "tiny_models" / "train.py"
MODELS = HERE / "engine"


def trained(engine: RealEngine) -> RealEngine:
    """The engine with the trained pair for its models; trains it where it is not there yet.

    Models that `AUTOTUNE_REAL_MODELS` names are taken as they are.  Minutes on two cores.
    """
    if "AUTOTUNE_REAL_MODELS" in os.environ:
        return engine
    made_from = hashlib.sha256(SCRIPT.read_bytes() + (MODELS / "models.py").read_bytes())
    folder = engine.folder / f"trained-{made_from.hexdigest()[:12]}"
    done = folder / ".done"
    if not done.exists():
        print(f"training the DFLASH pair into {folder}", flush=True)
        path = os.pathsep.join(map(str, (ROOT, MODELS, MODELS / "stubs")))
        subprocess.run(
            [str(engine.python), str(SCRIPT), str(folder), "--device", "cpu"],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(os.cpu_count() or 1)},
            check=True,
        )
        done.touch()
    return replace(engine, models=folder)
