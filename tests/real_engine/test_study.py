"""A small study of the real engine, begun while a stream keeps the old server alive."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from autotune.measurement import Ending
from autotune.reading import load_stored
from tests.real_engine import service
from tests.real_engine.place import RealEngine
from tests.real_engine.studies import SMALL_OBJECTIVE, RealStudy, missing_links
from tests.testhost import SystemdHost

STREAM_TOKENS = 3600
STREAMS = 2


@dataclass
class OldServer:
    """The server before the study, and what it answers until it is gone.

    Attributes:
        last_answer_s: Wall clock of its last 200 on `/v1/models`; told apart by its version.
        ended_s: When its last stream had ended.
    """

    url: str
    last_answer_s: float = 0.0
    ended_s: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    streaming: threading.Event = field(default_factory=threading.Event)

    def stream(self) -> None:
        body = {
            "text": "def total(values):",
            "stream": True,
            "sampling_params": {"max_new_tokens": STREAM_TOKENS, "ignore_eos": True},
        }
        try:
            with httpx.stream("POST", f"{self.url}/generate", json=body, timeout=120.0) as answer:
                for line in answer.iter_lines():
                    if line:
                        self.streaming.set()
        except httpx.TransportError:
            pass  # a slow machine: systemd has lost its patience with the stop
        self.ended_s = max(self.ended_s, time.time())

    def watch(self) -> None:
        """Ask without a pause until told to stop; only answers of the old server count."""
        with httpx.Client(base_url=self.url, timeout=2.0) as client:
            while not self.stop.wait(0.1):
                try:
                    served = client.get("/v1/models").status_code == httpx.codes.OK
                    version = client.get("/model_info").json().get("weight_version")
                except (httpx.TransportError, ValueError):
                    continue
                if served and version == "default":
                    self.last_answer_s = time.time()


@pytest.mark.slow
def test_the_old_server_is_never_taken_for_the_new_one(
    engine: RealEngine, engine_host: SystemdHost, tmp_path: Path
) -> None:
    """The oldest trap: it answers 200 for as long as a stream is in flight after SIGTERM."""
    service.install(engine_host, engine, speculation="dflash")
    before = service.state(engine_host)
    study = RealStudy(engine_host, tmp_path, "sglang-cpu-dflash")
    study.define_real(
        objective=SMALL_OBJECTIVE,
        lines={"trials": "trials = 2", "enqueue": "enqueue = [[16]]", "finalists": "finalists = 0"},
    )
    old = OldServer(f"http://{engine_host.host}:{service.PORT}")
    threads = [threading.Thread(target=run) for run in (*[old.stream] * STREAMS, old.watch)]
    for thread in threads:
        thread.start()
    try:
        assert old.streaming.wait(60)
        ended = study.run("run")
    finally:
        old.stop.set()
        for thread in threads:
            thread.join()
    assert ended.returncode == 0, ended.stderr
    assert service.state(engine_host) == before
    assert missing_links(study, ["window"]) == []

    stored = load_stored(str(study.file), f"sqlite:///{study.database}")
    starts = [start for trial in stored.trials for start in trial.starts]
    # The reference, the point, and the reference again.
    assert [start.record.ending for start in starts if start.record] == [Ending.COMPLETE] * 3
    first = starts[0].record
    assert first is not None
    proven_s = min(link.at_s for link in first.proof)
    # It went on answering until its stream had ended, and nothing was proven before that.
    asked_s = proven_s - first.load_s - first.stop_s
    print(f"the old server answered for {old.last_answer_s - asked_s:.1f} s after the stop")
    assert asked_s < old.ended_s < proven_s
    assert old.last_answer_s < proven_s
    lines = {link.link: link for link in first.proof}
    assert "draft_window_size=None, compact_cache=False" in lines["window: log"].seen
