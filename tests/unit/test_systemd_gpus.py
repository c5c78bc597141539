"""GPU memory after a stop: what no process accounts for is waited for, the rest is not ours."""

from __future__ import annotations

from autotune.systemd.gpus import gpu_room, occupied

IDLE = "gpu, GPU-a, 650\ngpu, GPU-b, 4\n"


def answer(a_mib: float, *apps: str) -> str:
    return "\n".join([f"gpu, GPU-a, {a_mib}", "gpu, GPU-b, 4", *apps])


def test_memory_that_is_still_held_is_named() -> None:
    room = gpu_room(answer(71000, "compute-apps, GPU-a, 77, 70400"), running=True)
    assert occupied(answer(71000), room) == ("69.3 GiB on GPU GPU-a that no process accounts for")
    assert occupied(IDLE, room) == ""


def test_processes_of_others_are_not_waited_for() -> None:
    room = gpu_room(answer(650), running=False)
    assert occupied(answer(40650, "compute-apps, GPU-a, 9, 40000"), room) == ""
    assert occupied(answer(40650, "compute-apps, GPU-a, 9, [N/A]"), room) == ""


def test_what_was_never_accounted_for_stays_allowed() -> None:
    room = gpu_room(answer(74000, "compute-apps, GPU-a, 77, 70000"), running=True)
    assert occupied(answer(5000), room) == ""
    assert occupied(answer(6000), room) != ""


def test_without_the_tool_nothing_is_known() -> None:
    assert gpu_room("", running=True) == {}
    assert occupied(IDLE, {}) == ""
    assert gpu_room("gpu, GPU-a, [N/A]\n", running=True) == {}
