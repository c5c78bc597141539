"""What holds for every test."""

from __future__ import annotations

import os

# As the command line does: threads of the linear algebra library only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
