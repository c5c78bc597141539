"""What a run says of itself to Prometheus: text exposition format 0.0.4, on one loopback port."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from autotune.errors import ConfigError
from autotune.session import HostSession
from autotune.stored import StoredStudy
from autotune.views import best_trial

__all__ = ["Figures", "exposition", "figures_of", "serve_metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at a run.

    Attributes:
        trials: Trials of the study by state, those of other runs too.
        hosts: Hosts of this run by state: usable, draining, lost.
        flying: Starts under way here.
        starts: Starts that this run has made.
        waiting: Results on this machine that the database does not have yet.
        storage_away: Whether the database does not answer.
        best_ratio: Best observed score against its host's reference; None without one.
    """

    study: str
    trials: Counter[str]
    hosts: Counter[str]
    flying: int
    starts: int
    waiting: int
    storage_away: bool
    best_ratio: float | None


def figures_of(
    stored: StoredStudy,
    sessions: Iterable[HostSession],
    *,
    flying: int,
    starts: int,
    waiting: int,
    storage_away: bool,
) -> Figures:
    """The figures of a run: what is stored of its study, and what its driver counts."""
    best = best_trial(stored)
    score = best.starts[0].score if best is not None else None
    hosts = (
        "lost" if s.lost is not None else "usable" if s.usable else "draining" for s in sessions
    )
    return Figures(
        study=stored.name,
        trials=Counter(trial.state for trial in stored.trials),
        hosts=Counter(hosts),
        flying=flying,
        starts=starts,
        waiting=waiting,
        storage_away=storage_away,
        best_ratio=score.ratio if score is not None else None,
    )


def exposition(figures: Figures) -> str:
    """The figures as Prometheus reads them."""
    study = figures.study.replace("\\", r"\\").replace('"', r"\"")
    single: dict[str, tuple[str, float]] = {
        "starts_in_flight": ("gauge", figures.flying),
        "starts_total": ("counter", figures.starts),
        "results_waiting": ("gauge", figures.waiting),
        "storage_away": ("gauge", int(figures.storage_away)),
    }
    if figures.best_ratio is not None:
        single["best_observed_ratio"] = ("gauge", figures.best_ratio)
    lines = []
    for name, by_state in (("trials", figures.trials), ("hosts", figures.hosts)):
        lines.append(f"# TYPE autotune_{name} gauge")
        lines += [
            f'autotune_{name}{{study="{study}",state="{state}"}} {count}'
            for state, count in sorted(by_state.items())
        ]
    for name, (kind, value) in single.items():
        lines += [f"# TYPE autotune_{name} {kind}", f'autotune_{name}{{study="{study}"}} {value}']
    return "\n".join(lines) + "\n"


@contextmanager
def serve_metrics(port: int, look: Callable[[], Figures | None]) -> Iterator[int]:
    """Answer `GET /metrics` on 127.0.0.1 while the block runs.

    Args:
        port: 0 takes a free one.
        look: None before there is anything to say.

    Yields:
        The port.

    Raises:
        ConfigError: The port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            figures = look()
            body = exposition(figures).encode() if figures is not None else b""
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ConfigError(
            f"--metrics-port {port} cannot be used: {error.strerror}", hint="give another port"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
