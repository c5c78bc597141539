"""Parsers of what systemd says: text in, values out.  The texts are systemd 252's."""

from __future__ import annotations

import pytest

from autotune.errors import TargetError
from autotune.supervisors.base import Identity
from autotune.systemd.facts import (
    SHOWN,
    bus_command,
    bus_path,
    exec_commands,
    parse_bus,
    parse_show,
    parse_version,
    show_command,
    unit_state,
)
from autotune.systemd.unit import parse_listeners, parse_process

RUNNING = """\
Type=simple
MainPID=50
Result=success
NRestarts=0
ExecMainPID=50
ExecMainCode=0
ExecMainStatus=0
ControlGroup=/system.slice/t.service
User=
KillMode=control-group
LoadState=loaded
ActiveState=active
SubState=running
FragmentPath=/etc/systemd/system/t.service
UnitFileState=disabled
NeedDaemonReload=no
InvocationID=bc87e02ba1c848e78f47f34c2ef9a200
"""
ENDED = (
    RUNNING.replace("MainPID=50\nResult=success", "MainPID=0\nResult=signal", 1)
    .replace("Code=0", "Code=2")
    .replace("Status=0", "Status=9")
    .replace("NRestarts=0", "NRestarts=3")
    .replace("=active", "=activating")
    .replace("=running", "=auto-restart")
)
NOT_FOUND = """\
LoadState=not-found
ActiveState=inactive
SubState=dead
FragmentPath=
UnitFileState=
NeedDaemonReload=no
InvocationID=
"""


def test_a_running_unit() -> None:
    state = unit_state(RUNNING)
    assert state.identity() == Identity(
        "bc87e02ba1c848e78f47f34c2ef9a200", 50, "active", "running", "success", 0
    )
    assert state.identity().running
    assert (state.control_group, state.type) == ("/system.slice/t.service", "simple")
    assert not state.need_reload


def test_a_killed_unit_that_waits_for_its_restart() -> None:
    identity = unit_state(ENDED).identity()
    assert (identity.exit_code, identity.exit_signal) == (None, 9)
    assert (identity.result, identity.n_restarts, identity.main_pid) == ("signal", 3, 0)
    assert not identity.running
    assert unit_state(ENDED).last_pid == 50


def test_an_exit_status() -> None:
    identity = unit_state(ENDED.replace("Code=2", "Code=1").replace("Status=9", "Status=7"))
    assert identity.identity().exit_code == 7
    assert identity.identity().exit_signal is None


def test_a_unit_that_is_not_there() -> None:
    state = unit_state(NOT_FOUND)
    assert state.load_state == "not-found"
    assert state.identity() == Identity("", 0, "inactive", "dead", "", 0)


@pytest.mark.parametrize("text", ["", "Failed to connect to bus", "LoadState=loaded\n"])
def test_something_else_is_no_state(text: str) -> None:
    with pytest.raises(TargetError, match="did not say"):
        unit_state(text)


def test_lines_that_are_no_property_are_skipped() -> None:
    assert parse_show("A=b=c\n\n with=blank\nX\n") == {"A": "b=c"}


def test_only_properties_of_one_line_are_asked_for() -> None:
    assert not any(name.startswith("Exec") and "Main" not in name for name in SHOWN)
    assert show_command("t.service")[-2:] == ["--", "t.service"]


@pytest.mark.parametrize(
    ("unit", "label"),
    [
        ("t.service", "t_2eservice"),
        ("llm-web@a_b.service", "llm_2dweb_40a_5fb_2eservice"),
        ("7b.service", "_37b_2eservice"),
        (r"a\x2db.service", "a_5cx2db_2eservice"),
    ],
)
def test_bus_paths(unit: str, label: str) -> None:
    assert bus_path(unit) == f"/org/freedesktop/systemd1/unit/{label}"
    assert bus_path(unit) in bus_command(unit, "Service", ["ExecStartEx"])


EXEC = (
    '{"type":"a(sasasttttuii)","data":[["/bin/sleep",["my sleep","$X","100%","\u00fc"],'
    '["ignore-failure","no-env-expand"],1795963952767909,1879333,0,0,50,0,0]]}'
)


def test_a_command_line_is_exact() -> None:
    (command,) = exec_commands(parse_bus(EXEC, ["ExecStartEx"])["ExecStartEx"])
    assert command.path == "/bin/sleep"
    assert command.argv == ("my sleep", "$X", "100%", "ü")
    assert command.flags == {"ignore-failure", "no-env-expand"}
    assert not command.expands


def test_several_properties_come_in_order() -> None:
    text = '{"type":"s","data":"/etc/t.service"}\n{"type":"as","data":["/a b.conf"]}\n'
    asked = ["FragmentPath", "DropInPaths"]
    assert parse_bus(text, asked) == {
        "FragmentPath": "/etc/t.service",
        "DropInPaths": ["/a b.conf"],
    }
    with pytest.raises(TargetError, match="1 of 2"):
        parse_bus('{"type":"s","data":""}', asked)
    with pytest.raises(TargetError, match="no JSON"):
        parse_bus("s broken\n[]\n", asked)


@pytest.mark.parametrize("value", [None, 3, [["/bin/x"]], [3]])
def test_no_command_list(value: object) -> None:
    with pytest.raises(TargetError, match="no command list"):
        exec_commands(value)


@pytest.mark.parametrize(
    ("text", "version"),
    [("systemd 252 (252.39-1~deb12u1)\n+PAM", 252), ("systemd 239\n", 239), ("bash: no\n", 0)],
)
def test_versions(text: str, version: int) -> None:
    assert parse_version(text) == version


# -- processes and sockets -------------------------------------------------------------------------
STAT = "42 (a b) c) S 1 42 42 0 -1 4194560 1 0 0 0 1 0 0 0 20 0 1 0 105380 5 6 7"


def test_a_process() -> None:
    cmdline, environ = "YQAAYiBjAA==", "QT1iPWMATk9UAEI9AA=="
    facts = parse_process(42, f"{cmdline}\n{environ}\n{STAT}\n100\n".encode())
    assert facts.argv == ("a", "", "b c")
    assert facts.environ == {"A": "b=c", "B": ""}
    assert facts.started_at_s == 1053.8


def test_a_process_without_words() -> None:
    assert parse_process(42, f"\n\n{STAT}\n100\n".encode()).argv == ()


@pytest.mark.parametrize("answer", [b"", b"YQA=\n\n42 broken\n100\n", b"%\n\n\n100\n"])
def test_no_process(answer: bytes) -> None:
    with pytest.raises(TargetError, match="42"):
        parse_process(42, answer)


OWNERS = (
    "16\t/system.slice/ssh.service\t0\tsshd: listener \n"
    "345\t/system.slice/t.service/worker\t1000\tpython web.py --port 30000 \n"
)


def test_the_owner_that_is_ours_counts() -> None:
    listener = parse_listeners(OWNERS, group="/system.slice/t.service")
    assert listener is not None
    assert (listener.pid, listener.belongs) == (345, True)
    assert "python web.py --port 30000" in listener.description


@pytest.mark.parametrize("group", ["", "/system.slice/t", "/system.slice/other.service"])
def test_a_stranger_is_named(group: str) -> None:
    listener = parse_listeners(OWNERS, group=group)
    assert listener is not None
    assert (listener.pid, listener.belongs) == (16, False)
    assert listener.description == "pid 16 (uid 0) of ssh.service: sshd: listener"


def test_nobody_listens_or_nobody_is_named() -> None:
    assert parse_listeners("", group="/x") is None
    unnamed = parse_listeners("0\t\t\t\n", group="/x")
    assert unnamed is not None
    assert (unnamed.pid, unnamed.belongs) == (0, False)
