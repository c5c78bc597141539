"""What holds for every test."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import tempfile

import hypothesis
import pytest

# As the command line does: threads of the linear algebra library only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that starts the tests in the background ignores Ctrl-C for them, and so would every
# command line that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same for `nohup` and the hang-up.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Services of the `process` supervisor leave their logs where this says; not in the user's home.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="state-of-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

# No test asserts a duration, and on a busy machine an example takes a second now and then.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

DRILL_SEED = "AUTOTUNE_DRILL_SEED"


def pytest_configure(config: pytest.Config) -> None:
    """Draw the cells of the fault drill before there are workers, which must agree on them."""
    os.environ.setdefault(DRILL_SEED, str(random.SystemRandom().randrange(10**6)))


def pytest_report_header(config: pytest.Config) -> str:
    return f"fault drill: {DRILL_SEED}={os.environ[DRILL_SEED]} draws the same cells again"
