"""Flags laid over the live command line (one piece: one function's cases and refusals)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.definition_files import FixedFlag
from autotune.engines import SGLANG
from autotune.errors import StudyError, UnitRefused
from autotune.launch import NONCE_FLAG, Recipe, make_recipe
from autotune.parameter import ParameterKind
from autotune.proof import Nonce, ParameterIntent
from autotune.sglang.flags import get_flag
from autotune.sglang.server import ServerInfo
from autotune.space import Parameter, SearchSpace
from autotune.supervisors.base import Original, Passage, Word
from tests.scripted import COMMAND, DEPLOYED, a_space, an_original

WINDOW = "--speculative-draft-window-size"
OLD_WINDOW = "--speculative-dflash-draft-window-size"
BUDGET = "--speculative-ddtree-budget"
INFO = ServerInfo(
    {
        "speculative_ddtree_budget": 8,
        "speculative_ddtree_topk_cap": 4,
        "speculative_draft_window_size": None,
        "weight_version": "default",
        "random_seed": 1,
    }
)


def recipe_of(
    original: Original | None = None,
    *,
    space: SearchSpace | None = None,
    fixed: tuple[FixedFlag, ...] = (),
    info: ServerInfo | None = INFO,
) -> Recipe:
    return make_recipe(
        space or a_space(), fixed, original or an_original(), host="gpu-a", info=info
    )


def flag_in(recipe: Recipe, flag: str, **changes: Any) -> str | None:
    return get_flag(recipe.launch({**DEPLOYED, **changes}, None).argv, flag)


def env_space(deployed: float | str | None = "on") -> SearchSpace:
    return SearchSpace(
        (
            Parameter(
                "mode",
                ParameterKind.CATEGORICAL,
                choices=("on", "off", None),
                deployed=deployed,
                env="DRAFT_MODE",
                proof=("environ",),
            ),
        )
    )


# -- launch ---------------------------------------------------------------------------------------


def test_the_deployed_point_is_the_live_command_line() -> None:
    assert recipe_of().launch(DEPLOYED, None).texts() == COMMAND


def test_a_point_changes_its_flags_in_place_and_nothing_else() -> None:
    texts = recipe_of().launch({"budget": 16, "topk": 8, "window": 2048}, None).texts()
    assert texts == (
        *COMMAND[:5],
        *("--speculative-ddtree-budget", "16", "--speculative-ddtree-topk-cap", "8"),
        *(WINDOW, "2048"),
    )


def test_none_takes_the_flag_out() -> None:
    space = a_space()
    window = replace(space.parameters[2], deployed=2048)
    space = replace(space, parameters=(*space.parameters[:2], window))
    recipe = recipe_of(an_original(*COMMAND, WINDOW, "2048"), space=space)
    texts = recipe.launch(DEPLOYED, None).texts()
    assert texts == COMMAND


def test_only_the_words_that_we_write_are_ours() -> None:
    launch = recipe_of().launch({**DEPLOYED, "budget": 16}, None)
    assert [word.text for word in launch.argv if word.ours] == ["16"]


def test_the_nonce_is_the_last_flag_and_left_out_for_export() -> None:
    recipe = recipe_of()
    nonce = recipe.nonce("made-up-3")
    assert nonce == Nonce(NONCE_FLAG, "made-up-3")
    assert recipe.launch(DEPLOYED, nonce).texts()[-2:] == (NONCE_FLAG, "made-up-3")
    assert NONCE_FLAG not in recipe.launch(DEPLOYED, None).texts()


@given(st.integers(1, 64), st.integers(1, 16), st.sampled_from([512, 2048, None]))
def test_what_is_written_is_what_is_read(budget: int, topk: int, window: int | None) -> None:
    recipe = recipe_of()
    values = {"budget": budget, "topk": topk, "window": window}
    launch = recipe.launch(values, recipe.nonce("n"))
    assert [
        get_flag(launch.argv, p.flag, p.aliases) for p in recipe.parameters
    ] == [None if v is None else str(v) for v in values.values()]  # fmt: skip
    assert recipe.launch(values, recipe.nonce("n")) == launch
    assert [intent.value for intent in recipe.intents(values)] == list(values.values())


def test_a_variable_carries_a_parameter_without_a_flag() -> None:
    original = an_original(environ={"DRAFT_MODE": "on"})
    recipe = recipe_of(original, space=env_space())
    launch = recipe.launch({"mode": "off"}, None)
    assert launch.texts() == COMMAND
    assert launch.environment == {"DRAFT_MODE": "off"}
    none = recipe.launch({"mode": None}, None)
    assert (none.environment, none.unset) == ({}, ("DRAFT_MODE",))


# -- fixed flags ----------------------------------------------------------------------------------


def test_fixed_flags_hold_for_the_reference_and_for_every_point() -> None:
    limit = FixedFlag(flag="--max-running-requests", value="64", why="the largest bucket")
    recipe = recipe_of(fixed=(limit,))
    assert get_flag(recipe.reference.argv, "--max-running-requests") == "64"
    assert flag_in(recipe, "--max-running-requests", budget=16) == "64"


def test_a_fixed_flag_replaces_the_live_value() -> None:
    limit = FixedFlag(flag="--port", value="31000", why="another port")
    assert recipe_of(fixed=(limit,)).reference.texts().count("--port") == 1
    assert flag_in(recipe_of(fixed=(limit,)), "--port") == "31000"


def test_a_fixed_switch_needs_no_value() -> None:
    switch = FixedFlag(flag="--enable-metrics", why="accept length")
    assert recipe_of(fixed=(switch,)).reference.texts()[-1] == "--enable-metrics"


def test_the_original_is_not_touched_by_fixed_flags() -> None:
    original = an_original()
    recipe_of(original, fixed=(FixedFlag(flag="--enable-metrics", why="accept length"),))
    assert original.launch.texts() == COMMAND


# -- spellings ------------------------------------------------------------------------------------


def test_the_spelling_that_the_engine_knows_is_written() -> None:
    old = {k: v for k, v in INFO.flat.items() if k != "speculative_draft_window_size"}
    info = ServerInfo({**old, "speculative_dflash_draft_window_size": None})
    recipe = recipe_of(info=info)
    assert flag_in(recipe, OLD_WINDOW, window=2048) == "2048"
    assert flag_in(recipe, WINDOW, window=2048) is None
    intent = recipe.intents({**DEPLOYED, "window": 2048})[2]
    assert (intent.flag, intent.aliases) == (OLD_WINDOW, (WINDOW,))


@pytest.mark.parametrize("info", [INFO, None, ServerInfo({"version": "9"})])
def test_without_other_knowledge_the_definitions_spelling_is_written(
    info: ServerInfo | None,
) -> None:
    assert flag_in(recipe_of(info=info), WINDOW, window=2048) == "2048"


def test_a_spelling_that_stands_in_the_unit_is_kept() -> None:
    space = a_space()
    window = replace(space.parameters[2], deployed=512)
    space = replace(space, parameters=(*space.parameters[:2], window))
    recipe = recipe_of(an_original(*COMMAND, OLD_WINDOW, "512"), space=space)
    assert recipe.launch({**DEPLOYED, "window": 2048}, None).texts()[-2:] == (OLD_WINDOW, "2048")


# -- deployed -------------------------------------------------------------------------------------


def test_a_deployed_value_that_does_not_run_shows_both() -> None:
    live = tuple("16" if word == "8" else word for word in COMMAND)
    with pytest.raises(StudyError) as caught:
        recipe_of(an_original(*live))
    for word in ("parameters.budget", "deployed = 8", "gpu-a", "runs 16"):
        assert word in caught.value.message


@pytest.mark.parametrize("chosen", [None, 7])
def test_a_flag_that_does_not_run_is_shown_as_none(chosen: int | None) -> None:
    told = ServerInfo({**INFO.flat, "speculative_ddtree_budget": chosen})
    with pytest.raises(StudyError, match=r"deployed = 8, but gpu-a runs none") as refused:
        recipe_of(an_original(*COMMAND[:5], *COMMAND[7:]), info=told)
    assert ("the engine chose 7" in refused.value.message) == (chosen is not None)


def test_a_value_that_the_engine_chose_itself_is_deployed() -> None:
    """The unit leaves the flag out, and the engine's own choice is what the definition says."""
    told = ServerInfo({**INFO.flat, "speculative_ddtree_budget": 8})
    recipe = recipe_of(an_original(*COMMAND[:5], *COMMAND[7:]), info=told)
    assert recipe.reference.texts() == (*COMMAND[:5], *COMMAND[7:])


def test_nobody_knows_a_choice_of_an_engine_that_does_not_answer() -> None:
    with pytest.raises(StudyError, match=r"deployed = 8, but gpu-a runs none"):
        recipe_of(an_original(*COMMAND[:5], *COMMAND[7:]), info=None)


def test_a_window_that_runs_although_deployed_is_none() -> None:
    with pytest.raises(StudyError, match="deployed = none, but gpu-a runs 2048"):
        recipe_of(an_original(*COMMAND, WINDOW, "2048"))


def test_what_runs_counts_and_not_what_the_unit_says() -> None:
    """The unit was edited after the last start."""
    edited = tuple("16" if word == "8" else word for word in COMMAND)
    with pytest.raises(UnitRefused, match=r"has --speculative-ddtree-budget 16, .* gives it 8"):
        recipe_of(an_original(*COMMAND, live=edited))


def test_a_stopped_service_is_judged_by_its_unit() -> None:
    recipe_of(an_original(active=False), info=None)
    edited = tuple("16" if word == "8" else word for word in COMMAND)
    with pytest.raises(StudyError, match="runs 16"):
        recipe_of(an_original(*edited, active=False), info=None)


def test_a_deployed_variable_is_read_from_the_process() -> None:
    recipe_of(an_original(environ={"DRAFT_MODE": "on"}), space=env_space())
    with pytest.raises(StudyError, match="runs off"):
        recipe_of(an_original(environ={"DRAFT_MODE": "off"}), space=env_space())


def test_a_number_may_be_spelled_differently_in_the_unit() -> None:
    memory = Parameter(
        "memory",
        ParameterKind.FLOAT,
        low=0.5,
        high=0.95,
        deployed=0.9,
        flag="--mem-fraction-static",
    )
    recipe_of(an_original(*COMMAND, "--mem-fraction-static", "0.90"), space=SearchSpace((memory,)))


def float_space(deployed: float = 0.9) -> SearchSpace:
    return SearchSpace(
        (
            Parameter(
                "memory",
                ParameterKind.FLOAT,
                low=0.5,
                high=0.95,
                deployed=deployed,
                flag="--mem-fraction-static",
                aliases=("--mem-frac",),
            ),
        )
    )


@pytest.mark.parametrize(
    ("runs", "told", "shown"),
    [
        (("--mem-fraction-static", "0.8"), None, "0.8 (--mem-fraction-static)"),
        (("--mem-fraction-static", "most"), None, "most (--mem-fraction-static)"),
        (("--mem-frac", "0.8"), None, "0.8 (--mem-fraction-static)"),
        ((), None, "none (--mem-fraction-static)"),
        ((), {"mem_fraction_static": 0.8}, "none (--mem-fraction-static; the engine chose 0.8)"),
        ((), {"mem_frac": 0.8}, "none (--mem-fraction-static; the engine chose 0.8)"),
        ((), {"mem_fraction_static": [0.9]}, "none (--mem-fraction-static)"),
        (
            ("--mem-fraction-sttic", "0.9"),
            None,
            "none (--mem-fraction-static; the nearest there is --mem-fraction-sttic 0.9)",
        ),
    ],
)
def test_what_runs_is_told_beside_what_was_said_to(
    runs: tuple[str, ...], told: dict[str, Any] | None, shown: str
) -> None:
    info = None if told is None else ServerInfo(told)
    with pytest.raises(StudyError) as caught:
        recipe_of(an_original(*COMMAND, *runs), space=float_space(), info=info)
    assert caught.value.message == f"parameters.memory: deployed = 0.9, but gpu-a runs {shown}"
    assert caught.value.hint == (
        "write into the definition what runs, or deploy what the definition says; after "
        "`autotune export --apply`, `--undo` takes it back and `init --name` begins anew from it"
    )


@pytest.mark.parametrize("name", ["mem_fraction_static", "mem_frac"])
def test_a_choice_of_the_engine_may_have_any_of_the_flags_names(name: str) -> None:
    recipe = recipe_of(space=float_space(), info=ServerInfo({name: 0.9}))
    assert recipe.reference.texts() == COMMAND


def test_a_file_that_is_missing_is_told_where_the_flag_is_not_found() -> None:
    original = replace(an_original(), files={"/a": "0f", "/b": "missing", "/c": "missing"})
    with pytest.raises(StudyError) as caught:
        recipe_of(original, space=float_space(), info=None)
    assert caught.value.message.endswith("runs none (--mem-fraction-static; /b is missing)")


def test_a_text_is_itself_and_no_number() -> None:
    def space(deployed: str) -> SearchSpace:
        text = Parameter("mode", ParameterKind.CATEGORICAL, choices=("8", "08"),
                         deployed=deployed, flag="--mode")  # fmt: skip
        return SearchSpace((text,))

    recipe_of(an_original(*COMMAND, "--mode", "08"), space=space("08"))
    with pytest.raises(StudyError, match="runs 08"):
        recipe_of(an_original(*COMMAND, "--mode", "08"), space=space("8"))


def test_what_is_deployed_without_a_process_stands_in_its_plan() -> None:
    """Words and variables as a start would have them, before those of the unit file."""
    stopped = an_original(*COMMAND[:5], "$A", active=False)
    planned = replace(stopped, planned_argv=COMMAND, environ={"A": " ".join(COMMAND[5:])})
    assert recipe_of(planned, info=None).launch(DEPLOYED, None).texts() == COMMAND
    variable = replace(an_original(active=False), environ={"DRAFT_MODE": "on"})
    assert recipe_of(variable, space=env_space(), info=None)
    with pytest.raises(StudyError, match=r"deployed = off, but gpu-a runs on \(DRAFT_MODE\)"):
        recipe_of(variable, space=env_space("off"), info=None)
    with pytest.raises(StudyError, match=r"deployed = on, but gpu-a runs none \(DRAFT_MODE\)"):
        recipe_of(an_original(), space=env_space())
    recipe_of(an_original(), space=env_space(None))


# -- where a flag lives ---------------------------------------------------------------------------


def test_a_flag_hidden_in_a_variable_is_refused_with_the_way_out() -> None:
    hidden = (*COMMAND[:5], "$ARGS")
    with pytest.raises(UnitRefused) as caught:
        recipe_of(an_original(*hidden, live=COMMAND))
    assert BUDGET in caught.value.message
    assert "variable" in caught.value.message
    assert "ExecStart" in caught.value.hint


def test_other_words_of_a_variable_are_kept_as_they_are() -> None:
    words = (*COMMAND, "$EXTRA")
    recipe = recipe_of(an_original(*words, live=(*COMMAND, "--enable-metrics")))
    launch = recipe.launch({**DEPLOYED, "budget": 16}, None)
    assert Word("$EXTRA") in launch.argv


# -- the nonce ------------------------------------------------------------------------------------


def test_an_engine_without_the_flag_proves_by_its_seed() -> None:
    recipe = recipe_of(info=ServerInfo({"random_seed": 1}))
    assert recipe.nonce("made-up-3") == Nonce("", "")
    launch = recipe.launch(DEPLOYED, recipe.nonce("made-up-3"))
    assert launch.texts() == COMMAND


def test_a_unit_that_sets_the_flag_itself_keeps_its_value() -> None:
    words = (*COMMAND, NONCE_FLAG, "2026-11")
    recipe = recipe_of(an_original(*words))
    assert recipe.nonce("made-up-3") == Nonce("", "")
    assert recipe.launch(DEPLOYED, recipe.nonce("made-up-3")).texts() == words


def test_a_fixed_flag_may_set_it_too() -> None:
    fixed = FixedFlag(flag=NONCE_FLAG, value="2026-11", why="the clients read it")
    assert recipe_of(fixed=(fixed,)).nonce("made-up-3").flag == ""


@pytest.mark.parametrize(
    ("words", "info"),
    [
        ((NONCE_FLAG, "2026-11"), INFO),  # the unit needs the flag for itself
        ((), ServerInfo({**{k: v for k, v in INFO.flat.items() if k != "weight_version"}})),
    ],
)
def test_a_pinned_seed_leaves_nothing_that_tells_starts_apart(
    words: tuple[str, ...], info: ServerInfo
) -> None:
    original = an_original(*COMMAND, "--random-seed", "1", *words)
    with pytest.raises(UnitRefused) as caught:
        recipe_of(original, info=info)
    assert caught.value.message == (
        f"gpu-a: the unit pins --random-seed and {NONCE_FLAG} is not free, so nothing tells one "
        "start from another"
    )
    assert caught.value.hint == "take --random-seed out of the unit"


def test_a_pinned_seed_does_not_matter_where_the_flag_is_free() -> None:
    for info in (INFO, None):
        recipe = recipe_of(an_original(*COMMAND, "--random-seed", "1"), info=info)
        assert recipe.nonce_flag == NONCE_FLAG


def test_an_engine_may_want_its_flag_for_the_nonce() -> None:
    engine = replace(SGLANG, nonce_flag="--served-model-name", nonce_replaces=True)
    original = an_original(*COMMAND, "--served-model-name", "kimi", "--random-seed", "1")
    recipe = make_recipe(a_space(), (), original, host="gpu-a", info=None, engine=engine)
    nonce = recipe.nonce("n")
    assert nonce == Nonce("--served-model-name", "n")
    assert get_flag(recipe.launch(DEPLOYED, nonce).argv, "--served-model-name") == "n"
    assert recipe.launch(DEPLOYED, None).texts() == original.launch.texts()


# -- the whole recipe -----------------------------------------------------------------------------


def test_every_name_of_a_setting_is_known_to_be_a_flag() -> None:
    info = ServerInfo({"page_size": 1}, {"tp_size": 8})
    assert recipe_of(info=info, space=float_space_of_none()).known_flags == {
        "--page-size",
        "--tp-size",
        "--mem-fraction-static",
        "--mem-frac",
    }
    assert recipe_of(info=None, space=float_space_of_none()).known_flags == frozenset()


def float_space_of_none() -> SearchSpace:
    """Nothing deployed, so that it fits a unit without the flag."""
    (memory,) = float_space().parameters
    return SearchSpace(
        (
            Parameter(
                "memory",
                ParameterKind.CATEGORICAL,
                choices=(0.9, None),
                deployed=None,
                flag=memory.flag,
                aliases=memory.aliases,
            ),
            *env_space(None).parameters,
        )
    )


def test_an_abbreviation_in_the_unit_is_edited_as_the_flag_that_it_means() -> None:
    words = (*COMMAND[:5], "--speculative-ddtree-b", "8", *COMMAND[7:])
    fixed = (FixedFlag(flag="--page-size", value="64", why="as measured"),)
    info = ServerInfo({**INFO.flat, "page_size": 1})
    recipe = recipe_of(an_original(*words, "--page", "1"), info=info, fixed=fixed)
    texts = recipe.launch({**DEPLOYED, "budget": 16}, None).texts()
    assert texts == (*COMMAND[:5], BUDGET, "16", *COMMAND[7:], "--page-size", "64")


def test_what_beneath_the_unit_sets_a_flag_that_may_be_left_out_is_refused() -> None:
    window = (WINDOW, "512")
    original = an_original("/s/run", *COMMAND[5:], live=(*COMMAND[:5], *window, *COMMAND[5:]))
    passage = Passage(before=(*COMMAND[:5], *window), dropped=1)
    original = replace(original, launch=replace(original.launch, passage=passage))
    with pytest.raises(UnitRefused, match=f"gpu-a: the server has {WINDOW} 512"):
        recipe_of(original)


def test_a_flag_of_the_study_in_a_script_is_refused_like_a_parameter() -> None:
    fixed = FixedFlag(flag="--page-size", value="64", why="as measured")
    original = an_original(*COMMAND, live=(*COMMAND, "--page-size", "1"))
    with pytest.raises(UnitRefused, match="gpu-a: the server has --page-size 1"):
        recipe_of(original, fixed=(fixed,))
    switch = FixedFlag(flag="--page-size", why="a switch has no value that could differ")
    assert recipe_of(original, fixed=(switch,))


def test_a_launch_keeps_the_variables_of_the_reference() -> None:
    recipe = recipe_of(an_original(environ={"DRAFT_MODE": "on"}), space=env_space())
    recipe = replace(
        recipe, reference=replace(recipe.reference, environment={"A": "1", "DRAFT_MODE": "x"})
    )
    launch = recipe.launch({"mode": "off"}, None)
    assert launch.environment == {"A": "1", "DRAFT_MODE": "off"}
    assert launch.unset == ()
    assert recipe_of(an_original(*COMMAND)).launch(DEPLOYED, None).environment == {}
    assert recipe.reference.environment == {"A": "1", "DRAFT_MODE": "x"}


def test_an_intent_says_where_the_value_is_looked_for() -> None:
    recipe = recipe_of(
        an_original(environ={"DRAFT_MODE": "on"}),
        space=SearchSpace((*a_space().parameters, *env_space().parameters)),
    )
    budget, _, window, mode = recipe.intents(
        {"budget": 16, "topk": 4, "window": None, "mode": "off"}
    )
    assert budget == ParameterIntent("budget", 16, BUDGET, (), "", ())
    assert window == ParameterIntent("window", None, WINDOW, (OLD_WINDOW,), "", ())
    assert mode == ParameterIntent("mode", "off", "", (), "DRAFT_MODE", ("environ",))


def test_a_stopped_service_is_taken_to_know_the_flag() -> None:
    assert recipe_of(an_original(active=False), info=None).nonce("x").flag == NONCE_FLAG
