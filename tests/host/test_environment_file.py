"""Our reading of environment files against systemd's own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.systemd.environment import parse_environment_file
from tests.host.conftest import HostFactory
from tests.host.tiny_unit import Probe

FILE = "/run/probe.env"
TEXT = st.lists(
    st.sampled_from(
        ["A", "B1", "=", "=", " ", "\t", "\n", "\n", "'", '"', "\\", "#", ";", "$", "x"]
    ),
    max_size=40,
).map("".join)


@pytest.fixture(scope="module")
def probe(systemd_hosts: HostFactory) -> Probe:
    return Probe(systemd_hosts("gpu-b"))


@settings(max_examples=40, deadline=None)
@given(text=TEXT)
def test_a_file_means_to_us_what_it_means_to_systemd(probe: Probe, text: str) -> None:
    probe.host.run(f"cat >{FILE}", input=text)
    probe.load(f"[Service]\nEnvironmentFile={FILE}\n")
    _, environ = probe.start()
    seen = {name: value for name, value in environ.items() if name in ("A", "B1", "AB1", "B1A")}
    ours = parse_environment_file(text)
    assert {name: ours.get(name) for name in seen} == seen
    assert {name for name in ours if name in ("A", "B1")} <= seen.keys()
