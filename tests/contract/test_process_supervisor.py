"""The `process` supervisor (one piece: one contract); it ends its service with its tuner."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

from autotune.errors import (
    ConfigError,
    HostBusy,
    LeaseLost,
    ServerStartError,
    UnitError,
    UnitNotFound,
)
from autotune.supervisors.base import Launch, Owner, Supervisor, Word
from autotune.supervisors.process import ProcessSupervisor
from autotune.supervisors.process_lease import owner_here
from autotune.supervisors.process_state import kept_port
from autotune.testing import supervisor_contract, tiny_server
from autotune.testing.supervisor_contract import (
    PATIENCE_S,
    SupervisorContract,
    claimed,
    run,
    until_ready,
)

SERVER = (sys.executable, "-I", "-S", tiny_server.__file__)


class ProcessService:
    """`tiny_server.py` under a `process` supervisor."""

    lacks: Mapping[str, str] = {}

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.base_url = f"http://127.0.0.1:{port}"

    def open(self) -> ProcessSupervisor:
        return ProcessSupervisor(
            "here",
            command=(*SERVER, "--port", str(self.port)),
            port=self.port,
            directory=self.directory,
            stop_timeout_s=PATIENCE_S,
        )

    def launch(self, *words: str, environment: Mapping[str, str] | None = None) -> Launch:
        argv = (*SERVER, "--port", str(self.port), *words)
        return Launch(tuple(Word(word, ours=True) for word in argv), environment or {})

    def owner(self, study: str = "contract") -> Owner:
        return owner_here(study)

    def kill_main(self) -> None:
        os.kill(self.open().identity().main_pid, signal.SIGKILL)

    @contextmanager
    def occupy(self) -> Iterator[int]:
        with stranger(self.port) as pid:
            yield pid


@pytest.fixture
def service(tmp_path: Path) -> ProcessService:
    return ProcessService(tmp_path / "service", free_port())


class TestProcessSupervisor(SupervisorContract):
    """Everything of the contract."""


def test_is_a_supervisor(service: ProcessService) -> None:
    assert isinstance(service.open(), Supervisor)


def test_service_ends_with_a_killed_tuner(service: ProcessService) -> None:
    with tuner_process(service, "--grandchild", "--ignore-sigterm") as (tuner, family):
        os.kill(tuner.pid, signal.SIGKILL)
        family.wait()
    assert len(family.pids) == 3
    identity = service.open().identity()
    assert not identity.running
    assert identity.exit_signal == signal.SIGKILL
    assert service.open().holder() is None


def test_dead_owner_is_followed_by_the_next(service: ProcessService) -> None:
    with tuner_process(service) as (tuner, family):
        os.kill(tuner.pid, signal.SIGKILL)
        tuner.wait(PATIENCE_S)
        with service.open() as supervisor:
            lease = supervisor.take_lease(
                service.owner("next"), supervisor.original(), restore_after_s=300
            )
            holder = supervisor.holder()
            supervisor.restore(lease)
        family.wait()
    assert holder is not None
    assert holder.study == "next"


def test_service_ends_with_the_owner_of_the_lease(service: ProcessService) -> None:
    """A worker that outlives the driver does not keep the service alive."""
    driver = subprocess.Popen(["sleep", "infinity"])
    try:
        facts = service.open().process(driver.pid)
        assert facts is not None
        here = owner_here("driver")
        owner = Owner(
            study=here.study,
            machine=here.machine,
            boot_id=here.boot_id,
            pid=driver.pid,
            started_at_s=facts.started_at_s,
            taken_at_s=here.taken_at_s,
        )
        with service.open() as supervisor:
            lease = supervisor.take_lease(owner, supervisor.original(), restore_after_s=300)
            with supervisor.claim(lease, "worker"):
                start = run(supervisor, service.launch())
                until_ready(supervisor, start)
                with watched(start.main_pid) as family:
                    driver.kill()
                    driver.wait()
                    family.wait()
                with pytest.raises(LeaseLost, match="gone"):
                    supervisor.start()
            supervisor.restore(lease)
    finally:
        driver.kill()
        driver.wait()


def test_killed_guard_takes_the_main_process_along(service: ProcessService) -> None:
    with claimed(service) as (supervisor, _):
        start = run(supervisor, service.launch("--grandchild"))
        lines = until_ready(supervisor, start)
        grandchild = next(int(line.text.split()[1]) for line in lines if "grandchild" in line.text)
        guard = psutil.Process(start.main_pid).parent()
        assert guard is not None
        with watched(start.main_pid, guard.pid) as family:
            guard.kill()
            family.wait()
        ending = supervisor_contract.until_ended(supervisor, start)
        identity = supervisor.identity()
        supervisor.stop(timeout_s=PATIENCE_S)
        after = supervisor.identity()
        assert supervisor.process(grandchild) is None
    assert "code=killed" in ending.text
    assert identity.active_state == "failed"
    assert identity.exit_signal == signal.SIGKILL
    assert after == identity


def test_children_do_not_outlive_the_main_process(service: ProcessService) -> None:
    with claimed(service) as (supervisor, _):
        start = run(supervisor, service.launch("--grandchild", "--exit", "0"))
        ending = supervisor_contract.until_ended(supervisor, start)
        identity = supervisor_contract.eventually(
            supervisor.identity, lambda seen: seen.active_state == "inactive"
        )
        with supervisor.follow(start) as log:
            lines = supervisor_contract.collect(log.read, supervisor_contract.is_ending)
        pid = next(int(line.text.split()[1]) for line in lines if "grandchild" in line.text)
        assert supervisor.process(pid) is None
    assert "status=0" in ending.text
    assert identity.exit_code == 0
    assert identity.result == "success"


def test_start_of_a_running_service_is_refused(service: ProcessService) -> None:
    with claimed(service) as (supervisor, _):
        start = run(supervisor, service.launch())
        with pytest.raises(HostBusy, match=str(start.main_pid)):
            supervisor.start()


def test_original_runs_when_nothing_was_applied(service: ProcessService) -> None:
    with claimed(service) as (supervisor, _):
        start = supervisor.start()
        until_ready(supervisor, start)
        facts = supervisor.process(start.main_pid)
    assert facts is not None
    assert facts.argv == (*SERVER, "--port", str(service.port))


def test_clean_stop_is_a_success(service: ProcessService) -> None:
    with claimed(service) as (supervisor, _):
        until_ready(supervisor, run(supervisor, service.launch()))
        supervisor.stop(timeout_s=PATIENCE_S)
        identity = supervisor.identity()
    assert (identity.active_state, identity.sub_state) == ("inactive", "dead")
    assert identity.result == "success"
    assert identity.exit_signal == signal.SIGTERM


def test_stop_by_force_is_a_timeout(service: ProcessService) -> None:
    with claimed(service) as (supervisor, _):
        until_ready(supervisor, run(supervisor, service.launch("--ignore-sigterm")))
        supervisor.stop(timeout_s=0)
        identity = supervisor.identity()
    assert (identity.active_state, identity.result) == ("failed", "timeout")
    assert identity.exit_signal == signal.SIGKILL


def test_program_that_is_not_there(service: ProcessService, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    with claimed(service) as (supervisor, _):
        supervisor.apply(Launch((Word(nowhere),)))
        with pytest.raises(UnitError, match="nowhere"):
            supervisor.start()
        assert not supervisor.identity().running
    missing = ProcessSupervisor("here", command=(nowhere,), port=service.port, directory=tmp_path)
    with pytest.raises(UnitNotFound, match="nowhere"):
        missing.original()


def test_words_that_no_process_can_be_given(service: ProcessService) -> None:
    with claimed(service) as (supervisor, _):
        with pytest.raises(ConfigError):
            supervisor.apply(service.launch("a\0b"))
        with pytest.raises(ConfigError):
            supervisor.apply(Launch(()))
        supervisor.apply(service.launch("x" * 4_000_000))
        with pytest.raises(ServerStartError):
            supervisor.start()


def test_given_environment_is_the_whole_environment(service: ProcessService) -> None:
    supervisor = ProcessSupervisor(
        "here",
        command=(*SERVER, "--port", str(service.port)),
        port=service.port,
        directory=service.directory,
        environment={"ONLY": "this"},
        stop_timeout_s=PATIENCE_S,
    )
    lease = supervisor.take_lease(service.owner(), supervisor.original(), restore_after_s=300)
    with supervisor.claim(lease, "one"):
        start = supervisor.start()
        facts = supervisor.process(start.main_pid)
    supervisor.restore(lease)
    assert facts is not None
    assert facts.environ == {"ONLY": "this", "INVOCATION_ID": start.invocation_id}


def test_log_is_cut_at_its_limit(service: ProcessService) -> None:
    supervisor = ProcessSupervisor(
        "here",
        command=(*SERVER, "--port", str(service.port)),
        port=service.port,
        directory=service.directory,
        stop_timeout_s=PATIENCE_S,
        log_limit_bytes=2000,
    )
    lease = supervisor.take_lease(service.owner(), supervisor.original(), restore_after_s=300)
    with supervisor.claim(lease, "one"):
        supervisor.apply(
            service.launch("--say-hex", (b"x" * 99 + b"\n").hex() * 100, "--exit", "0")
        )
        start = supervisor.start()
        with supervisor.follow(start) as log:
            lines = supervisor_contract.collect(log.read, supervisor_contract.is_ending)
    supervisor.restore(lease)
    assert [line.text for line in lines[-2:]] == [
        "log limit of 2000 bytes reached, later lines of the service are lost",
        "Main process exited, code=exited, status=0",
    ]
    assert sum(len(line.text) for line in lines) < 2200


# -- parts ----------------------------------------------------------------------------------------
TUNER = """
import sys, signal
from pathlib import Path
from tests.contract.test_process_supervisor import ProcessService
from autotune.testing.supervisor_contract import run, until_ready
service = ProcessService(Path(sys.argv[1]), int(sys.argv[2]))
supervisor = service.open()
lease = supervisor.take_lease(service.owner("doomed"), supervisor.original(), restore_after_s=300)
with supervisor.claim(lease, "one"):
    until_ready(supervisor, run(supervisor, service.launch(*sys.argv[3:])))
    print("ready", flush=True)
    while True:
        signal.pause()
"""


@contextmanager
def tuner_process(
    service: ProcessService, *words: str
) -> Iterator[tuple[subprocess.Popen[str], Watched]]:
    """A tuner with a running service in a process of its own: it, and the service's processes."""
    command = [sys.executable, "-c", TUNER, str(service.directory), str(service.port), *words]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as tuner:
        try:
            assert tuner.stdout is not None
            assert tuner.stdout.readline() == "ready\n"
            main = psutil.Process(service.open().identity().main_pid)
            guard = main.parent()
            assert guard is not None
            children = guard.children(recursive=True)
            with watched(guard.pid, *(child.pid for child in children)) as family:
                yield tuner, family
        finally:
            tuner.kill()


class Watched:
    """Processes whose end is awaited; a zombie, which its new parent has yet to collect, ended."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self.pids = pids
        self.fds = [os.pidfd_open(pid) for pid in pids]

    def wait(self) -> None:
        """Return when all have ended."""
        for pid, fd in zip(self.pids, self.fds, strict=True):
            assert select.select([fd], [], [], PATIENCE_S)[0], f"pid {pid} still runs"


@contextmanager
def watched(*pids: int) -> Iterator[Watched]:
    """Watch living processes."""
    family = Watched(pids)
    try:
        yield family
    finally:
        for fd in family.fds:
            os.close(fd)


@contextmanager
def stranger(port: int) -> Iterator[int]:
    """Another process listens on a port."""
    command = [*SERVER, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            while tiny_server.READY_TEXT not in process.stdout.readline():
                assert process.poll() is None
            yield process.pid
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("also_held", [False, True], ids=["stopped", "stopped again and again"])
def test_a_stopped_guard_is_no_shelter(service: ProcessService, also_held: bool) -> None:
    """A guard under SIGSTOP ends the service once it is let go on; one that stays stopped is
    killed after everything below it, so that no child is lost."""
    with claimed(service) as (supervisor, _):
        start = run(supervisor, service.launch("--grandchild", "--ignore-sigterm"))
        until_ready(supervisor, start)
        guard = psutil.Process(start.main_pid).parent()
        assert guard is not None
        children = [child.pid for child in guard.children(recursive=True)]
        assert len(children) == 2
        with watched(guard.pid, *children) as family:
            guard.suspend()
            with holding(guard) if also_held else nullcontext():
                supervisor.stop(timeout_s=0.2)
            family.wait()
        assert not supervisor.identity().running
        assert supervisor.listener(service.port) is None


@contextmanager
def holding(process: psutil.Process) -> Iterator[None]:
    """Stop a process again whenever it is let go on, until it is gone."""
    over = threading.Event()

    def hold() -> None:
        while not over.wait(0.002):
            try:
                process.suspend()
            except psutil.NoSuchProcess:
                return

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield
    finally:
        over.set()
        holder.join()


def test_every_command_means_the_same_port(service: ProcessService) -> None:
    with claimed(service):
        assert kept_port(service.directory) == service.port
    assert kept_port(service.directory.parent) == 0
