"""Every shape of unit in `tests/cases/units/` on real systemd: tuned with proof, or refused before
anything is changed, with the sentence that its file expects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune import proof
from autotune.errors import AutotuneError
from autotune.launch import Recipe, make_recipe
from autotune.passage import same_words
from autotune.remote.ssh import SshConnector
from autotune.remote.ssh_config import SshOptions
from autotune.sglang.flags import get_flag
from autotune.space import ParameterValue
from autotune.supervisors.base import Original, Word
from autotune.supervisors.process_lease import owner_here
from autotune.supervisors.systemd import SystemdSupervisor
from autotune.systemd.way_back import Limits
from autotune.testing.supervisor_contract import PATIENCE_S, run, until_ready
from tests.host.conftest import HostFactory
from tests.host.unit_shapes import CASES, INFO, Shape, install_all, run_last, space_of

FILES = "find /etc/systemd /etc/*.conf /srv -type f -exec sha256sum {} + 2>/dev/null | sort -k 2"


@pytest.fixture(scope="module")
def shapes(systemd_hosts: HostFactory) -> Iterator[dict[str, Shape]]:
    host = systemd_hosts("gpu-shapes")
    yield install_all(host)
    host.run("rm -rf /etc/systemd/system-generators /srv/* && systemctl daemon-reload")


@pytest.fixture(scope="module")
def connector(shapes: dict[str, Shape]) -> Iterator[SshConnector]:
    host = next(iter(shapes.values())).host
    with SshConnector(host.name, SshOptions(config=str(host.ssh_config))) as connector:
        yield connector


def supervisor_of(shape: Shape, connector: SshConnector) -> SystemdSupervisor:
    limits = Limits(serve_s=PATIENCE_S, restore_s=2 * PATIENCE_S, start_s=PATIENCE_S)
    return SystemdSupervisor(
        shape.host.name, connector, unit=shape.unit, port=shape.port, limits=limits
    )


def recipe_for(shape: Shape, original: Original) -> Recipe:
    """As `opening.look` makes it: a stopped server tells nothing."""
    info = INFO if original.active else None
    return make_recipe(space_of(shape.case), (), original, host=shape.host.name, info=info)


def looked_at(shape: Shape) -> tuple[str, ...]:
    """Id of the running start, hashes of every file, and what is there of ours."""
    found = shape.host.run(
        f"systemctl show --property=InvocationID --value -- '{shape.unit}'; {FILES};"
        "find /run /etc/systemd -name '*autotune*' 2>/dev/null",
        check=False,
    )
    lines = tuple(found.stdout.splitlines())
    assert not [line for line in lines if "autotune" in line]
    return lines


@pytest.mark.parametrize("name", [path.stem for path in CASES])
def test_a_shape_is_tuned_with_proof_or_refused(
    shapes: dict[str, Shape], connector: SshConnector, name: str
) -> None:
    shape = shapes[name]
    run_last(shape)
    before = looked_at(shape)
    with supervisor_of(shape, connector) as supervisor:
        if shape.case.tuned:
            tune(shape, supervisor)
        else:
            with pytest.raises(AutotuneError, match=f"(?s){shape.case.expect}"):
                recipe_for(shape, supervisor.original())
    after = looked_at(shape)
    assert after[1:] == before[1:]
    if not shape.case.tuned:
        assert after == before


def tune(shape: Shape, supervisor: SystemdSupervisor) -> None:
    """A trial, where something can be left out another without it, and the way back."""
    original = supervisor.original()
    recipe = recipe_for(shape, original)
    lease = supervisor.take_lease(owner_here("shapes"), original, restore_after_s=300)
    values: dict[str, ParameterValue] = {"budget": 16, "topk": 8, "window": 2048, "mode": "off"}
    without: dict[str, ParameterValue] = {"window": None, "mode": None}
    removes = shape.case.head.keys() & without.keys()
    try:
        for changes in ({}, without) if removes else ({},):
            point = {p.name: {**values, **changes}[p.name] for p in recipe.parameters}
            with supervisor.claim(lease, f"claim-{len(changes)}"):
                previous = supervisor.identity().invocation_id
                launch = recipe.launch(point, recipe.nonce("shapes-1"))
                start = run(supervisor, launch)
                until_ready(supervisor, start)
                identity = supervisor.identity()
                process = supervisor.process(identity.main_pid)
                assert process is not None
                proof.require(
                    (
                        proof.invocation_link(previous, start, identity),
                        proof.process_link(start, identity, process),
                        proof.argv_link(supervisor.expected_argv(launch, process), process),
                        *proof.environ_links(launch, recipe.intents(point), process),
                        proof.listener_link(shape.port, supervisor.listener(shape.port)),
                    )
                )
                words = tuple(Word(text) for text in process.argv)
                for intent in recipe.intents(point):
                    if intent.flag:
                        seen = get_flag(
                            words, intent.flag, intent.aliases, known_flags=recipe.known_flags
                        )
                        assert seen == (None if intent.value is None else str(intent.value))
                assert get_flag(words, "--weight-version") == "shapes-1"
    finally:
        supervisor.restore(lease)
    identity = supervisor.identity()
    if original.active:
        restored = supervisor.process(identity.main_pid)
        assert restored is not None
        assert restored.argv == original.live_argv
        assert same_words(supervisor.expected_argv(original.launch, restored), restored.argv)
    else:
        assert not identity.running
