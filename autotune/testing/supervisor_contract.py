"""What every supervisor must do, as tests: inherit `SupervisorContract` and give it a service.

The fixture `service` of the inheriting class returns a `ServiceUnderTest`: how to reach one small
well-behaved HTTP server (`tiny_server.py`) through the supervisor, and how to do to it what only
the place knows: kill it, or occupy its port.
"""

from __future__ import annotations

import pytest

from autotune.errors import HostBusy, LeaseLost
from autotune.supervisors.log_lines import LogSource
from autotune.testing.service_under_test import (
    NASTY_WORDS,
    PATIENCE_S,
    Need,
    ServiceUnderTest,
    changes,
    claimed,
    collect,
    eventually,
    get,
    is_ending,
    is_ready,
    require,
    run,
    texts,
    until_ended,
    until_ready,
)
from autotune.testing.tiny_server import START_TEXT

__all__ = [
    "PATIENCE_S",
    "Need",
    "ServiceUnderTest",
    "SupervisorContract",
    "claimed",
    "collect",
    "eventually",
    "is_ending",
    "is_ready",
    "run",
    "texts",
    "until_ended",
    "until_ready",
]


class SupervisorContract:
    """The protocol of `autotune.supervisors.base`, executable."""

    # -- one whole trial ------------------------------------------------------------------------
    def test_whole_trial(self, service: ServiceUnderTest) -> None:
        with service.open() as supervisor:
            original = supervisor.original()
            assert original.launch.argv
            lease = supervisor.take_lease(service.owner(), original, restore_after_s=300)
            try:
                assert lease.host == supervisor.host
                with supervisor.claim(lease, "trial-0"):
                    supervisor.apply(service.launch())
                    supervisor.stop(timeout_s=PATIENCE_S)
                    start = supervisor.start()
                    lines = until_ready(supervisor, start)
                    identity = supervisor.identity()
                    facts = supervisor.process(identity.main_pid)
                    listener = supervisor.listener(service.port)
                    supervisor.beat(lease)
                    supervisor.stop(timeout_s=PATIENCE_S)
                    stopped = supervisor.identity()
            finally:
                supervisor.restore(lease)
            assert identity.running
            assert identity.active_state == "active"
            assert identity.main_pid == start.main_pid
            assert identity.invocation_id == start.invocation_id
            assert len(start.invocation_id) == 32
            assert identity.n_restarts == start.n_restarts
            assert facts is not None
            assert facts.argv == service.launch().texts()
            assert supervisor.expected_argv(service.launch(), facts) == facts.argv
            assert facts.started_at_s >= start.requested_at_s
            assert listener is not None
            assert listener.belongs
            assert any(line.text.startswith(START_TEXT) for line in lines)
            assert not stopped.running
            assert stopped.main_pid == 0
            assert stopped.active_state in ("inactive", "failed")
            assert supervisor.process(start.main_pid) is None
            assert supervisor.listener(service.port) is None or original.active
            assert supervisor.holder() is None

    def test_answers_while_it_runs_and_not_after(self, service: ServiceUnderTest) -> None:
        require(service, Need.HTTP)
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch())
            until_ready(supervisor, start)
            models = get(service, "/v1/models")
            supervisor.stop(timeout_s=PATIENCE_S)
            assert models["data"][0]["id"] == "tiny"
            with pytest.raises(OSError, match=r"refused|reset"):
                get(service, "/v1/models")

    # -- starts ---------------------------------------------------------------------------------
    def test_each_start_has_an_id_and_a_log_of_its_own(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            first = run(supervisor, service.launch("--say", "I am the first"))
            first_lines = until_ready(supervisor, first)
            second = run(supervisor, service.launch("--say", "I am the second"))
            second_lines = until_ready(supervisor, second)
            assert first.invocation_id != second.invocation_id
            assert "I am the first" in texts(first_lines)
            assert "I am the second" in texts(second_lines)
            assert "I am the first" not in texts(second_lines)
            assert supervisor.identity().invocation_id == second.invocation_id

    def test_words_arrive_as_they_were_applied(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            launch = service.launch("--", *NASTY_WORDS)
            start = run(supervisor, launch)
            until_ready(supervisor, start)
            facts = supervisor.process(supervisor.identity().main_pid)
            assert facts is not None
            assert facts.argv == launch.texts()
            if Need.HTTP not in service.lacks:
                assert tuple(get(service, "/argv")[-len(NASTY_WORDS) :]) == NASTY_WORDS

    def test_variables_arrive(self, service: ServiceUnderTest) -> None:
        wanted = {"TINY_PLAIN": "1", "TINY_NASTY": 'a b"c\' $HOME %n \\ ☃ {"k": 1}'}
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch(environment=wanted))
            until_ready(supervisor, start)
            facts = supervisor.process(supervisor.identity().main_pid)
            assert facts is not None
            assert {name: facts.environ.get(name) for name in wanted} == wanted
            if Need.HTTP not in service.lacks:
                seen = get(service, "/environ")
                assert {name: seen.get(name) for name in wanted} == wanted

    def test_variables_of_a_trial_are_gone_in_the_next(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch(environment={"TINY_PLAIN": "1"}))
            until_ready(supervisor, start)
            start = run(supervisor, service.launch())
            until_ready(supervisor, start)
            facts = supervisor.process(supervisor.identity().main_pid)
            assert facts is not None
            assert "TINY_PLAIN" not in facts.environ

    def test_another_object_sees_and_ends_the_same_service(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, lease):
            start = run(supervisor, service.launch())
            until_ready(supervisor, start)
            with service.open() as other:
                assert other.identity() == supervisor.identity()
                holder = other.holder()
                assert holder is not None
                assert holder.study == "contract"
                with other.claim(lease, "newer"):
                    other.stop(timeout_s=PATIENCE_S)
                assert not supervisor.identity().running

    def test_leaving_the_context_ends_nothing(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (outer, lease):
            with service.open() as inner, inner.claim(lease, "newer"):
                inner.apply(service.launch())
                inner.stop(timeout_s=PATIENCE_S)
                start = inner.start()
                until_ready(inner, start)
            assert outer.identity().main_pid == start.main_pid
            assert outer.identity().running

    # -- endings --------------------------------------------------------------------------------
    def test_exit_status_is_seen(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch("--exit", "2"))
            ending = until_ended(supervisor, start)
            identity = eventually(supervisor.identity, lambda seen: seen.active_state == "failed")
            assert "status=2" in ending.text
            assert "code=exited" in ending.text
            assert identity.exit_code == 2
            assert identity.exit_signal is None
            assert identity.result == "exit-code"
            assert identity.main_pid == 0
            assert identity.invocation_id in (start.invocation_id, "")

    def test_last_words_come_before_the_word_about_the_end(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch("--say", "last words", "--exit", "3"))
            with supervisor.follow(start) as log:
                lines = collect(log.read, is_ending)
            service_texts = [line.text for line in lines if line.source is LogSource.SERVICE]
            assert "last words" in service_texts

    def test_kill_is_seen(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch())
            until_ready(supervisor, start)
            service.kill_main()
            ending = until_ended(supervisor, start)
            identity = eventually(supervisor.identity, lambda seen: seen.active_state == "failed")
            assert "status=9" in ending.text
            assert "code=killed" in ending.text
            assert identity.exit_signal == 9
            assert identity.exit_code is None
            assert identity.result == "signal"

    def test_start_after_a_failure(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            failed = run(supervisor, service.launch("--exit", "2"))
            until_ended(supervisor, failed)
            start = run(supervisor, service.launch())
            until_ready(supervisor, start)
            identity = supervisor.identity()
            assert identity.running
            assert identity.result == "success"
            assert identity.invocation_id not in (failed.invocation_id, "")

    def test_a_server_that_ignores_sigterm_is_killed(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch("--ignore-sigterm"))
            until_ready(supervisor, start)
            supervisor.stop(timeout_s=1)
            assert supervisor.process(start.main_pid) is None
            assert supervisor.listener(service.port) is None

    def test_stop_ends_children_that_left_the_session(self, service: ServiceUnderTest) -> None:
        require(service, Need.HTTP)
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch("--grandchild"))
            lines = until_ready(supervisor, start)
            pid = next(int(text.split()[1]) for text in texts(lines) if "grandchild" in text)
            assert supervisor.process(pid) is not None
            supervisor.stop(timeout_s=PATIENCE_S)
            assert supervisor.process(pid) is None

    def test_stop_of_a_stopped_service_does_nothing(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            supervisor.stop(timeout_s=PATIENCE_S)
            before = supervisor.identity()
            supervisor.stop(timeout_s=PATIENCE_S)
            assert supervisor.identity() == before
            assert not before.running

    # -- the log --------------------------------------------------------------------------------
    def test_lines_end_at_carriage_returns(self, service: ServiceUnderTest) -> None:
        raw = b"load 1%\rload 2%\r\nbad \xff byte\n" + b"x" * 9000 + b"\n"
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch("--say-hex", raw.hex()))
            lines = until_ready(supervisor, start)
            seen = texts(lines)
            assert seen.index("load 1%") + 1 == seen.index("load 2%")
            assert "bad � byte" in seen
            assert "x" * 9000 in seen

    def test_follow_begins_at_the_start_whenever_it_is_asked(
        self, service: ServiceUnderTest
    ) -> None:
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch())
            first = until_ready(supervisor, start)
            again = until_ready(supervisor, start)
            assert texts(first) == texts(again)
            assert [line.at_s for line in first] == sorted(line.at_s for line in first)

    def test_a_quiet_log_gives_none(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _):
            start = run(supervisor, service.launch())
            with supervisor.follow(start) as log:
                collect(log.read, is_ready)
                assert log.read(0.0) is None

    # -- ports ----------------------------------------------------------------------------------
    def test_a_stranger_on_the_port_is_named(self, service: ServiceUnderTest) -> None:
        require(service, Need.PORTS)
        with claimed(service) as (supervisor, _):
            supervisor.apply(service.launch())
            supervisor.stop(timeout_s=PATIENCE_S)
            with service.occupy() as pid:
                listener = supervisor.listener(service.port)
                assert listener is not None
                assert not listener.belongs
                assert listener.pid == pid
                with pytest.raises(HostBusy, match=rf"\b{pid}\b"):
                    supervisor.start()
                with pytest.raises(HostBusy, match=rf"\b{pid}\b"):
                    supervisor.stop(timeout_s=1)
                assert not supervisor.identity().running
            supervisor.stop(timeout_s=PATIENCE_S)

    # -- lease and claims -----------------------------------------------------------------------
    def test_second_lease_is_refused_and_names_the_study(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (supervisor, _), service.open() as other:
            original = supervisor.original()
            with pytest.raises(HostBusy, match="contract"):
                other.take_lease(service.owner("late"), original, restore_after_s=300)

    def test_changes_without_a_claim_are_refused(self, service: ServiceUnderTest) -> None:
        with service.open() as supervisor:
            lease = supervisor.take_lease(
                service.owner(), supervisor.original(), restore_after_s=300
            )
            try:
                for change in changes(supervisor, service):
                    with pytest.raises(LeaseLost):
                        change()
            finally:
                supervisor.restore(lease)

    def test_changes_after_the_claim_are_refused(self, service: ServiceUnderTest) -> None:
        with service.open() as supervisor:
            lease = supervisor.take_lease(
                service.owner(), supervisor.original(), restore_after_s=300
            )
            try:
                with supervisor.claim(lease, "one"):
                    supervisor.check_claim()
                for change in changes(supervisor, service):
                    with pytest.raises(LeaseLost):
                        change()
            finally:
                supervisor.restore(lease)

    def test_an_older_claim_is_refused(self, service: ServiceUnderTest) -> None:
        with claimed(service) as (late, lease):
            start = run(late, service.launch())
            until_ready(late, start)
            with service.open() as newer, newer.claim(lease, "newer"):
                for change in changes(late, service):
                    with pytest.raises(LeaseLost):
                        change()
                assert newer.identity().running
                newer.stop(timeout_s=PATIENCE_S)

    def test_nothing_is_changed_after_restore(self, service: ServiceUnderTest) -> None:
        with service.open() as supervisor:
            original = supervisor.original()
            lease = supervisor.take_lease(service.owner(), original, restore_after_s=300)
            with supervisor.claim(lease, "one"):
                supervisor.apply(service.launch())
                supervisor.restore(lease)
                before = supervisor.identity()
                for change in changes(supervisor, service):
                    with pytest.raises(LeaseLost):
                        change()
                assert supervisor.identity() == before
            with pytest.raises(LeaseLost):
                supervisor.beat(lease)
            with pytest.raises(LeaseLost), supervisor.claim(lease, "two"):
                pytest.fail("a claim of a lease that was given back")

    def test_restore_brings_back_what_was_found(self, service: ServiceUnderTest) -> None:
        with service.open() as supervisor:
            original = supervisor.original()
            lease = supervisor.take_lease(service.owner(), original, restore_after_s=300)
            with supervisor.claim(lease, "one"):
                run(supervisor, service.launch("--say", "changed"))
            supervisor.restore(lease)
            supervisor.restore(lease)
            again = supervisor.original()
            assert again.launch == original.launch
            assert again.active == original.active
            assert again.live_argv == original.live_argv
            assert again.fragment == original.fragment
            assert supervisor.holder() is None

    def test_anybody_can_revert(self, service: ServiceUnderTest) -> None:
        with service.open() as supervisor, service.open() as other:
            original = supervisor.original()
            lease = supervisor.take_lease(service.owner(), original, restore_after_s=300)
            try:
                with supervisor.claim(lease, "one"):
                    run(supervisor, service.launch())
                    owner = other.revert()
                    for change in changes(supervisor, service):
                        with pytest.raises(LeaseLost):
                            change()
            finally:
                supervisor.restore(lease)
            assert owner is not None
            assert owner.study == "contract"
            assert other.holder() is None
            assert other.original().active == original.active
            assert other.revert() is None

    def test_a_lease_can_be_taken_again(self, service: ServiceUnderTest) -> None:
        with service.open() as supervisor:
            original = supervisor.original()
            first = supervisor.take_lease(service.owner(), original, restore_after_s=300)
            supervisor.restore(first)
            second = supervisor.take_lease(service.owner(), original, restore_after_s=300)
            try:
                assert first.id != second.id
                supervisor.beat(second)
                supervisor.restore(first)
                supervisor.beat(second)
            finally:
                supervisor.restore(second)
