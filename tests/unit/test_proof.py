"""Every link of the proof holds for right facts, breaks for wrong ones (one piece: one chain)."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import MeasurementError, SettingsNotApplied
from autotune.measurement import Evidence
from autotune.proof import (
    RAW_LIMIT,
    Nonce,
    ParameterIntent,
    argv_link,
    bound_link,
    environ_link,
    environ_links,
    generation_link,
    invocation_link,
    listener_link,
    nonce_link,
    parameter_links,
    process_link,
    require,
)
from autotune.sglang.log import StartupLog
from autotune.sglang.server import Generation, ServerInfo
from autotune.sglang.witnesses import witnesses
from autotune.supervisors.base import Identity, Launch, Listener, ProcessFacts, Start, Word
from autotune.supervisors.log_lines import LogLine, LogSource
from tests.scripted import COMMAND, log_lines, settings_of

OLD, NEW = "a" * 32, "b" * 32
START = Start(NEW, 77, requested_at_s=500.0, n_restarts=0)
RUNNING = Identity(NEW, 77, "active", "running", "success", 0)
NONCE = Nonce("--weight-version", "made-up-3-0badcafe")
SEED = Nonce("", "")


def facts(
    *argv: str, environ: dict[str, str] | None = None, started_at_s: float = 500.4
) -> ProcessFacts:
    return ProcessFacts(77, argv or COMMAND, environ or {}, started_at_s)


def settings(**changes: Any) -> dict[str, Any]:
    words = (*COMMAND, "--speculative-draft-window-size", "2048", NONCE.flag, NONCE.value)
    return {**settings_of(Launch(tuple(Word(text) for text in words))), **changes}


def log_of(*lines: str, source: LogSource = LogSource.SERVICE) -> StartupLog:
    log = StartupLog()
    for line in lines:
        log.feed(LogLine(line, 0.0, source))
    return log


def window(value: int | None = 2048, *, proof: tuple[str, ...] = ()) -> ParameterIntent:
    return ParameterIntent(
        "window",
        value,
        "--speculative-draft-window-size",
        ("--speculative-dflash-draft-window-size",),
        "",
        proof,
    )


def budget(value: int = 8, *, proof: tuple[str, ...] = ()) -> ParameterIntent:
    return ParameterIntent("budget", value, "--speculative-ddtree-budget", (), "", proof)


def by_name(links: tuple[Evidence, ...]) -> dict[str, bool]:
    return {link.link: link.ok for link in links}


# -- 1: invocation --------------------------------------------------------------------------------


@pytest.mark.parametrize("previous", [OLD, ""])
def test_a_new_invocation_that_still_runs_is_proof(previous: str) -> None:
    assert invocation_link(previous, START, RUNNING).ok


@pytest.mark.parametrize(
    ("previous", "start", "identity"),
    [
        pytest.param(NEW, START, RUNNING, id="the id is the one from before"),
        pytest.param(OLD, START, replace(RUNNING, invocation_id=OLD), id="the old one runs"),
        pytest.param(OLD, START, replace(RUNNING, invocation_id="c" * 32), id="a third one runs"),
        pytest.param(OLD, START, replace(RUNNING, n_restarts=1), id="it was restarted by itself"),
        pytest.param(
            OLD,
            replace(START, invocation_id=""),
            replace(RUNNING, invocation_id=""),
            id="nobody gave it an id",
        ),
    ],
)
def test_an_invocation_breaks(previous: str, start: Start, identity: Identity) -> None:
    link = invocation_link(previous, start, identity)
    assert not link.ok
    assert previous in link.seen or previous == ""


# -- 2: process -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("process", "ok"),
    [
        pytest.param(facts(started_at_s=500.0), True, id="at the same moment"),
        pytest.param(facts(started_at_s=499.99), True, id="one clock tick early"),
        pytest.param(facts(started_at_s=499.9), False, id="an older process"),
        pytest.param(facts(started_at_s=1.0), False, id="the process from before"),
        pytest.param(None, False, id="no process"),
    ],
)
def test_the_process_must_be_younger_than_the_request(
    process: ProcessFacts | None, ok: bool
) -> None:
    assert process_link(START, RUNNING, process).ok is ok


# -- 3: argv and environ --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "ok"),
    [
        pytest.param(COMMAND, True, id="the same words"),
        pytest.param(("/usr/bin/python3", *COMMAND), True, id="a script's interpreter in front"),
        pytest.param(("/usr/bin/env", "-S", "bash", *COMMAND), True, id="a longer shebang"),
        pytest.param((*COMMAND[:-1], "5"), False, id="another value"),
        pytest.param(COMMAND[:-2], False, id="a flag is missing"),
        pytest.param((*COMMAND, "--extra"), False, id="one word more"),
        pytest.param(("/bin/other", *COMMAND[1:]), False, id="another program"),
        pytest.param(
            ("x", "/bin/other", *COMMAND[1:]), False, id="a prefix before another program"
        ),
        pytest.param((COMMAND[0], *reversed(COMMAND[1:])), False, id="another order"),
    ],
)
def test_argv(seen: tuple[str, ...], ok: bool) -> None:
    assert argv_link(COMMAND, facts(*seen)).ok is ok


def test_argv_without_a_process_is_broken() -> None:
    link = argv_link(COMMAND, None)
    assert (link.ok, link.seen) == (False, "")


@given(st.lists(st.text(max_size=4), min_size=1, max_size=6), st.data())
def test_argv_never_holds_for_words_that_do_not_end_in_the_wanted_ones(
    words: list[str], data: st.DataObject
) -> None:
    seen = tuple(data.draw(st.lists(st.text(max_size=4), max_size=8)))
    process = ProcessFacts(77, seen, {}, 0.0)
    ok = argv_link(tuple(words), process).ok
    assert ok is (seen[max(0, len(seen) - len(words)) :] == tuple(words))


@pytest.mark.parametrize(
    ("environ", "ok"),
    [
        ({"WINDOW": "2048", "PATH": "/bin"}, True),
        ({"WINDOW": "512"}, False),
        ({"PATH": "/bin"}, False),
    ],
)
def test_environ(environ: dict[str, str], ok: bool) -> None:
    launch = Launch((Word("serve"),), {"WINDOW": "2048"})
    assert environ_link(launch, facts("serve", environ=environ)).ok is ok


def test_environ_without_a_process_is_broken() -> None:
    assert not environ_link(Launch((Word("serve"),), {"WINDOW": "2048"}), None).ok


def env_intent(value: int | None) -> ParameterIntent:
    return ParameterIntent("window", value, "", (), "WINDOW", ())


def test_a_variable_that_must_not_be_there_breaks_when_it_is() -> None:
    launch = Launch((Word("serve"),), {"BUDGET": "8"})
    for environ, ok in (({"BUDGET": "8"}, True), ({"BUDGET": "8", "WINDOW": "512"}, False)):
        link = environ_link(launch, facts("serve", environ=environ), absent=("WINDOW",))
        assert link.ok is ok
        assert link.wanted == "{'WINDOW': None, 'BUDGET': '8'}"
    assert link.seen == "{'WINDOW': '512', 'BUDGET': '8'}"


def test_the_environment_is_a_link_only_where_the_study_touches_it() -> None:
    plain, process = Launch((Word("serve"),)), facts("serve", environ={"WINDOW": "512"})
    assert environ_links(plain, (), process) == ()
    assert environ_links(plain, (budget(), env_intent(512)), process) == ()
    assert environ_links(plain, (replace(budget(), value=None),), process) == ()
    for launch, intents, ok in (
        (plain, (env_intent(None),), False),
        (replace(plain, unset=("WINDOW",)), (), False),
        (replace(plain, unset=("OTHER",)), (), True),
        (replace(plain, environment={"WINDOW": "512"}), (), True),
        (replace(plain, environment={"WINDOW": "512"}), (env_intent(512),), True),
        (replace(plain, environment={"WINDOW": "2048"}), (env_intent(2048),), False),
    ):
        (link,) = environ_links(launch, intents, process)
        assert (link.link, link.ok) == ("environ", ok)


# -- 4: listener and bind -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "ok", "seen"),
    [
        (Listener(77, belongs=True, description="pid 77, sglang"), True, "pid 77, sglang"),
        (Listener(9, belongs=False, description="pid 9, nginx"), False, "pid 9, nginx"),
        (Listener(0, belongs=False, description="unknown"), False, "unknown"),
        (None, False, "nobody listens"),
    ],
)
def test_the_listener_must_belong_to_the_service(
    listener: Listener | None, ok: bool, seen: str
) -> None:
    link = listener_link(30000, listener)
    assert (link.ok, link.seen) == (ok, seen)


def test_a_start_that_logged_bind_and_readiness_is_bound() -> None:
    assert bound_link(log_of(*log_lines(settings()))).ok


@pytest.mark.parametrize("missing", ["Uvicorn running", "fired up"])
def test_a_missing_bind_or_ready_line_breaks(missing: str) -> None:
    lines = [line for line in log_lines(settings()) if missing not in line]
    link = bound_link(log_of(*lines))
    assert (link.ok, link.seen) == (False, "no such line")


def test_a_refused_bind_breaks_even_when_the_fired_up_line_follows() -> None:
    refused = "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000)"
    *lines, ready = log_lines(settings())
    link = bound_link(log_of(*lines, refused, ready))
    assert not link.ok
    assert link.seen == refused


def test_lines_without_the_id_of_the_start_prove_no_bind() -> None:
    assert not bound_link(log_of(*log_lines(settings()), source=LogSource.LOOSE)).ok


# -- 5: nonce -------------------------------------------------------------------------------------


def test_the_nonce_in_log_and_answer_is_proof() -> None:
    link = nonce_link(NONCE, log_of(*log_lines(settings())), ServerInfo(settings()))
    assert link.ok
    assert NONCE.value in link.wanted


@pytest.mark.parametrize(
    ("in_log", "in_answer"),
    [
        pytest.param({}, {"weight_version": "made-up-2-before"}, id="the old process answers"),
        pytest.param({"weight_version": "made-up-2-before"}, {}, id="the log of the run before"),
        pytest.param(
            {"weight_version": "default"}, {"weight_version": "default"}, id="both ignore it"
        ),
        pytest.param({}, {"weight_version": None}, id="the answer says null"),
    ],
)
def test_a_nonce_breaks(in_log: dict[str, Any], in_answer: dict[str, Any]) -> None:
    log = log_of(*log_lines(settings(**in_log)))
    assert not nonce_link(NONCE, log, ServerInfo(settings(**in_answer))).ok


def test_an_answer_or_a_log_without_the_nonce_breaks_it() -> None:
    assert not nonce_link(NONCE, log_of(), ServerInfo(settings())).ok
    without = {key: value for key, value in settings().items() if key != "weight_version"}
    assert not nonce_link(NONCE, log_of(*log_lines(settings())), ServerInfo(without)).ok
    assert not nonce_link(NONCE, log_of(*log_lines(without)), ServerInfo(without)).ok


@pytest.mark.parametrize(("answered", "ok"), [(501119508, True), (1, False), (None, False)])
def test_the_random_seed_stands_in_for_the_nonce(answered: int | None, ok: bool) -> None:
    log = log_of(*log_lines(settings()))
    assert nonce_link(SEED, log, ServerInfo(settings(random_seed=answered))).ok is ok


def test_a_seed_that_is_null_in_both_places_proves_nothing() -> None:
    log = log_of(*log_lines(settings(random_seed=None)))
    assert not nonce_link(SEED, log, ServerInfo(settings(random_seed=None))).ok


# -- 6: parameters --------------------------------------------------------------------------------


def test_every_witness_of_a_parameter_gives_a_link() -> None:
    links = parameter_links(
        (budget(), window()), log_of(*log_lines(settings())), ServerInfo(settings())
    )
    assert by_name(links) == {
        "budget: log": True,
        "budget: server_args": True,
        "budget: server_info": True,
        "window: log": True,
        "window: server_args": True,
        "window: server_info": True,
    }


def test_an_ignored_window_breaks_the_link_to_the_log() -> None:
    """Unit and argv are right, even the engine's settings are: only the draft runner tells."""
    log = log_of(*log_lines(settings(), window=None))
    links = parameter_links((window(),), log, ServerInfo(settings()))
    assert by_name(links) == {
        "window: log": False,
        "window: server_args": True,
        "window: server_info": True,
    }
    broken = links[0]
    assert broken.wanted == "draft_window_size=2048, compact_cache=True"
    assert broken.seen == "draft_window_size=None, compact_cache=False"


def test_a_window_that_is_on_although_it_was_left_out_breaks_too() -> None:
    plain = settings(speculative_draft_window_size=None)
    log = log_of(*log_lines(plain, window=4096))
    links = by_name(parameter_links((window(None),), log, ServerInfo(plain)))
    assert links == {
        "window: log": False,
        "window: server_args": True,
        "window: server_info": True,
    }


def test_none_is_shown_by_none() -> None:
    plain = settings(speculative_draft_window_size=None)
    links = parameter_links((window(None),), log_of(*log_lines(plain)), ServerInfo(plain))
    assert [link.ok for link in links] == [True, True, True]
    assert links[0].seen == "draft_window_size=None, compact_cache=False"


def test_a_null_in_server_info_is_not_the_value() -> None:
    info = ServerInfo(settings(speculative_draft_window_size=None))
    links = by_name(parameter_links((window(),), log_of(*log_lines(settings())), info))
    assert links["window: server_info"] is False


def test_the_schedulers_view_counts_over_the_other() -> None:
    info = ServerInfo(settings(), {"speculative_ddtree_budget": 4})
    links = by_name(parameter_links((budget(),), log_of(*log_lines(settings())), info))
    assert links["budget: server_info"] is False


def test_an_older_spelling_of_the_key_is_found() -> None:
    old = {"speculative_dflash_draft_window_size": 2048, "random_seed": 1}
    links = by_name(parameter_links((window(),), log_of(), ServerInfo(old)))
    assert links == {"window: server_info": True}


def test_a_parameter_that_the_engine_shows_nowhere_is_broken() -> None:
    links = parameter_links((budget(),), log_of("a line"), ServerInfo({"version": "0.5.17"}))
    assert by_name(links) == {"budget: engine": False}


def test_a_definition_may_say_that_argv_is_enough() -> None:
    assert parameter_links((budget(proof=("argv",)),), log_of(), ServerInfo({})) == ()


def test_only_the_named_places_are_asked() -> None:
    links = parameter_links(
        (budget(proof=("server_info",)),), log_of(*log_lines(settings())), ServerInfo(settings())
    )
    assert by_name(links) == {"budget: server_info": True}


@pytest.mark.parametrize(
    "proof", [("log",), ("server_info",), ("argv", "log"), ("argv", "server_info")]
)
def test_a_place_that_the_definition_names_must_show_the_value(proof: tuple[str, ...]) -> None:
    links = parameter_links((budget(proof=proof),), log_of("a line"), ServerInfo({"version": "1"}))
    assert any(not link.ok for link in links)


def test_each_of_two_named_places_must_show_the_value() -> None:
    links = parameter_links(
        (budget(proof=("log", "server_info")),), log_of("a line"), ServerInfo(settings())
    )
    assert any(not link.ok for link in links)


@pytest.mark.parametrize(
    ("seen", "ok"),
    [
        *((8, True), ("8", True), (8.0, True)),
        *((9, False), ("9", False), (8.5, False), (None, False), ("none", False), ("", False)),
    ],
)
def test_spellings_of_one_value(seen: object, ok: bool) -> None:
    info = ServerInfo({"speculative_ddtree_budget": seen})
    assert by_name(parameter_links((budget(),), log_of(), info)) == {"budget: server_info": ok}


def test_a_switch_is_no_number() -> None:
    for asked, shown in ((1, True), (0, False)):
        info = ServerInfo({"speculative_ddtree_budget": shown})
        assert by_name(parameter_links((budget(asked),), log_of(), info)) == {
            "budget: server_info": False
        }


@pytest.mark.parametrize("shown", [True, False, 0, "None"])
def test_a_window_that_is_off_is_shown_by_null_alone(shown: object) -> None:
    info = ServerInfo({"speculative_draft_window_size": shown})
    assert by_name(parameter_links((window(None),), log_of(), info)) == {
        "window: server_info": False
    }


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_value_is_proven_only_by_itself(asked: int, runs: int) -> None:
    shown = settings(speculative_ddtree_budget=runs)
    links = parameter_links((budget(asked),), log_of(*log_lines(shown)), ServerInfo(shown))
    assert all(link.ok for link in links) is (asked == runs)


# -- 7: generation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nonce", "tokens", "version", "ok"),
    [
        (NONCE, 8, NONCE.value, True),
        (NONCE, 0, NONCE.value, False),
        (NONCE, 8, "made-up-2-before", False),
        (NONCE, 8, None, False),
        (SEED, 8, None, True),
        (SEED, 0, None, False),
    ],
)
def test_one_real_generation(nonce: Nonce, tokens: int, version: str | None, ok: bool) -> None:
    assert generation_link(nonce, Generation("text", tokens, version, "length")).ok is ok


# -- what a broken link says ----------------------------------------------------------------------


def test_require_names_the_first_broken_link_with_wanted_and_seen() -> None:
    good = Evidence("argv", "a", "a", ok=True, at_s=0.0)
    first = Evidence("window: log", "draft_window_size=2048", "draft_window_size=None", False, 0.0)
    second = Evidence("nonce", "x", "y", ok=False, at_s=0.0)
    with pytest.raises(SettingsNotApplied) as caught:
        require((good, first, second))
    error = caught.value
    assert (error.link, error.wanted, error.seen) == (first.link, first.wanted, first.seen)
    for word in ("window: log", "draft_window_size=2048", "draft_window_size=None"):
        assert word in str(error)
    assert isinstance(error, MeasurementError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.link, again.wanted, again.seen) == (error.link, error.wanted, error.seen)


def test_links_that_hold_raise_nothing() -> None:
    require((Evidence("argv", "a", "a", ok=True, at_s=0.0),))


def test_secrets_are_masked_in_every_field() -> None:
    words = (*COMMAND, "--api-key", "sk-verysecret1")
    link = argv_link(words, facts(*words))
    assert link.ok
    assert "sk-verysecret1" not in repr(link)
    launch = Launch((Word("serve"),), {"HF_TOKEN": "hf-verysecret"})
    assert "hf-verysecret" not in repr(
        environ_link(launch, facts("serve", environ={"HF_TOKEN": "hf-verysecret"}))
    )
    answer = Generation("my api_key='sk-verysecret1' is", 8, None, None)
    assert "sk-verysecret1" not in repr(generation_link(SEED, answer))


@pytest.mark.parametrize("secret", ["sk-very$ecret!", "two words", "semi;colon-secret"])
def test_secrets_that_a_shell_would_quote_are_masked_too(secret: str) -> None:
    words = (*COMMAND, "--api-key", secret)
    assert secret not in repr(argv_link(words, facts(*words)))


def test_what_a_whole_proof_shows() -> None:
    """What is stored with a trial and read by people: link by link, wanted against seen."""
    before = time.time()
    log, info = log_of(*log_lines(settings())), ServerInfo(settings())
    launch = Launch(tuple(map(Word, COMMAND)), {"WINDOW": "2048"})
    process = facts(environ={"WINDOW": "2048"}, started_at_s=500.456)
    listener = Listener(77, belongs=True, description="pid 77, sglang")
    answer = Generation("four", 8, NONCE.value, "length")
    links = (
        invocation_link(OLD, START, RUNNING),
        process_link(START, RUNNING, process),
        argv_link(COMMAND, process),
        environ_link(launch, process),
        listener_link(30000, listener),
        bound_link(log),
        nonce_link(NONCE, log, info),
        *parameter_links((budget(),), log, info),
        generation_link(NONCE, answer),
    )
    command = " ".join(COMMAND)
    assert [(link.link, link.wanted, link.seen) for link in links] == [
        (
            "invocation",
            f"a new id, still the current one: {NEW}",
            f"before {OLD}, now {NEW}",
        ),
        ("process", "process 77 begun after 500.00 s of uptime", "begun at 500.46 s"),
        ("argv", command, command),
        ("environ", "{'WINDOW': '2048'}", "{'WINDOW': '2048'}"),
        ("listener", "port 30000 held by the service", "pid 77, sglang"),
        ("bound", "this start logged its bind and its readiness", "bound and ready"),
        (
            "nonce",
            f"weight_version: {NONCE.value}",
            f"log {NONCE.value}, server {NONCE.value}",
        ),
        ("budget: log", "tree_budget=8", "tree_budget=8"),
        ("budget: server_args", "speculative_ddtree_budget=8", "speculative_ddtree_budget=8"),
        ("budget: server_info", "speculative_ddtree_budget=8", "speculative_ddtree_budget=8"),
        ("generation", f"at least one token by {NONCE.value}", f"8 tokens by {NONCE.value}"),
    ]
    assert all(link.ok for link in links)
    assert all(before <= link.at_s <= time.time() for link in links)
    raw = {link.link: link.raw for link in links}
    assert raw["invocation"] == repr(RUNNING)
    assert raw["process"] == "(77, 500.456)"
    assert raw["argv"] == command
    assert raw["bound"].splitlines() == list(log.tail)
    assert raw["generation"] == "four"


def test_what_is_not_there_is_said_to_be_missing() -> None:
    silent = ServerInfo({})
    nobody = Identity("", 0, "inactive", "dead", "success", 0)
    assert invocation_link("", START, nobody).seen == "before none, now none"
    assert process_link(START, RUNNING, None).seen == "no such process"
    assert nonce_link(NONCE, log_of(), silent).seen == "log not shown, server not shown"
    seed = nonce_link(SEED, log_of(), silent)
    assert seed.wanted == "random_seed: the same random seed in log and answer"
    unnamed = generation_link(SEED, Generation("", 3, None, None))
    assert (unnamed.wanted, unnamed.seen) == ("at least one token", "3 tokens by unnamed")
    (nowhere,) = parameter_links((budget(),), log_of(), silent)
    assert nowhere.wanted == "--speculative-ddtree-budget = 8 shown by the engine"
    assert nowhere.seen == "neither its log nor its server_info shows this setting"
    (no_log,) = parameter_links((budget(proof=("log",)),), log_of(), silent)
    assert no_log.link == "budget: log"
    assert no_log.seen == "its log does not show this setting"
    variable = replace(env_intent(512), proof=("server_info",))
    (no_info,) = parameter_links((variable,), log_of(), silent)
    assert (no_info.link, no_info.wanted) == (
        "window: server_info",
        "WINDOW = 512 shown by the engine",
    )


def test_a_clock_tick_is_forgiven_and_no_more() -> None:
    for started_at_s, ok in ((499.98, True), (499.979, False)):
        assert process_link(START, RUNNING, facts(started_at_s=started_at_s)).ok is ok


def test_one_token_is_an_answer() -> None:
    assert generation_link(SEED, Generation("", 1, None, None)).ok


@pytest.mark.parametrize(
    ("keys", "value", "shown"),
    [
        (("speculative_draft_window_size",), 512, {"draft_window_size": "512",
                                                   "compact_cache": "True"}),
        (("speculative_dflash_draft_window_size",), None, {"draft_window_size": "None",
                                                           "compact_cache": "False"}),
        (("speculative_ddtree_budget",), 8, {"tree_budget": "8"}),
        (("speculative_ddtree_topk_cap",), 4, {"topk_cap": "4"}),
        (("speculative_num_draft_tokens",), 16, {"block_size": "16"}),
        (("old_name", "speculative_ddtree_budget"), 8, {"tree_budget": "8"}),
        (("speculative_ddtree_budget",), None, {}),
        (("page_size",), 8, {}),
    ],
)  # fmt: skip
def test_what_the_workers_lines_show(
    keys: tuple[str, ...], value: int | None, shown: dict[str, str]
) -> None:
    assert witnesses(keys, value) == shown


def test_raw_text_is_kept_short() -> None:
    assert len(generation_link(SEED, Generation("x" * 50_000, 8, None, None)).raw) == RAW_LIMIT
