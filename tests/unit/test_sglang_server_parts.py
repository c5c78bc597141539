"""Parts of the simulated server without a process: clock, tokens, cache, answers, noise."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.testing.sglang_server.answers import Model, load_tasks
from autotune.testing.sglang_server.clock import VirtualClock
from autotune.testing.sglang_server.counters import Histogram
from autotune.testing.sglang_server.faults import Fault, Faults
from autotune.testing.sglang_server.noise import Noise
from autotune.testing.sglang_server.prefix_cache import PrefixCache
from autotune.testing.sglang_server.setting import Setting
from autotune.testing.sglang_server.surface import Surface
from autotune.testing.sglang_server.tokens import chat_text, decode, encode, pieces

TASKS = """
[[task]]
name = "add"
prompt = "Write add(a, b)."
entry_point = "add"
solution = '''
def add(a, b):
    return a + b
'''
near_miss = '''
def add(a, b):
    return a - b
'''
"""
DEMO = Surface.named("demo")


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def __call__(self) -> float:
        return self.time_s


def model(setting: Setting, faults: str = "", tasks: Path | None = None) -> Model:
    return Model(DEMO, setting, Faults.parse(faults)).with_tasks(tasks)


def text(m: Model, prompt: str, tokens: int) -> str:
    answer = m.answer(prompt)
    return "".join(answer.take(min(tokens, answer.length_tokens)))


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    (tmp_path / "basic.toml").write_text(TASKS)
    return tmp_path


def test_lateness_shortens_the_next_wait_instead_of_adding_up() -> None:
    now = Hands()
    clock = VirtualClock(time_scale=2.0, now=now)
    ends = []
    for late_s in (0.0, 0.003, 0.001, 0.0, 0.002):
        now.time_s += clock.advance(0.020) + late_s  # every sleep ends late
        ends.append(now.time_s)
    assert ends[-1] - 100.0 == pytest.approx(5 * 0.010 + 0.002)


def test_a_late_round_needs_no_wait() -> None:
    now = Hands()
    clock = VirtualClock(time_scale=1.0, now=now)
    clock.advance(0.010)
    now.time_s += 0.050
    assert clock.advance(0.010) == 0.0
    assert clock.due == pytest.approx(100.020)


def test_idle_time_is_not_caught_up() -> None:
    now = Hands()
    clock = VirtualClock(time_scale=1.0, now=now)
    now.time_s += 30
    clock.resume(now.time_s)
    assert clock.advance(0.010) == pytest.approx(0.010)


def test_a_suspended_process_does_not_catch_up_for_ever() -> None:
    now = Hands()
    clock = VirtualClock(time_scale=1.0, most_late_s=0.5, now=now)
    now.time_s += 3600
    clock.advance(0.010)
    assert now.time_s - clock.due <= 0.5


@given(st.text())
def test_tokens_lose_nothing(value: str) -> None:
    assert decode(encode(value)) == value
    assert "".join(pieces(value)) == value


def test_a_token_is_a_few_bytes_of_code() -> None:
    source = Path(__file__).read_text("utf-8")
    assert 2.5 < len(source) / len(encode(source)) < 4.5


def test_foreign_token_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="not in the vocabulary"):
        decode([17])


def test_the_chat_template_adds_a_few_tokens() -> None:
    assert 5 < len(encode(chat_text([("user", "hello")]))) < 40


@pytest.mark.parametrize(
    ("shared", "page_size", "cached"), [(100, 1, 100), (100, 16, 96), (0, 1, 0)]
)
def test_the_cache_finds_the_longest_prefix_in_whole_pages(
    shared: int, page_size: int, cached: int
) -> None:
    cache = PrefixCache(page_size=page_size)
    cache.insert([*range(shared), *([-1] * 80)])
    assert cache.match([*range(shared), *([-2] * 80)]) == cached


def test_one_token_is_always_computed() -> None:
    cache = PrefixCache()
    cache.insert(list(range(64)))
    assert cache.match(list(range(64))) == 63


def test_the_cache_forgets_the_oldest() -> None:
    cache = PrefixCache(capacity_tokens=256)
    for prompt in range(8):
        cache.insert([prompt] * 64)
    assert cache.tokens <= 256
    assert cache.match([7] * 64) == 63
    assert cache.match([0] * 64) == 0
    cache.clear()
    assert (cache.tokens, cache.match([7] * 64)) == (0, 0)


def test_an_ordinary_answer_depends_on_the_prompt_alone() -> None:
    narrow, other = model(Setting(8, 4)), model(Setting(21, 3, 512))
    assert text(narrow, "a loop", 200) == text(other, "a loop", 200)
    assert text(narrow, "a loop", 200) != text(narrow, "a tree", 200)


def test_an_answer_counts_as_many_tokens_as_it_wrote() -> None:
    for prompt in ("one", "two", "three"):
        assert len(encode(text(model(Setting(8, 4)), prompt, 300))) == 300


def test_a_wide_tree_garbles_many_answers() -> None:
    wide, narrow = model(Setting(31, 16)), model(Setting(8, 4))
    prompts = [f"prompt {n}" for n in range(60)]
    changed = [p for p in prompts if text(wide, p, 120) != text(narrow, p, 120)]
    assert 40 <= len(changed) <= 60
    assert any("\ufffd" in text(wide, p, 120) for p in changed)
    assert not any("\ufffd" in text(narrow, p, 120) for p in prompts)


def test_the_same_prompt_is_garbled_in_the_same_way() -> None:
    wide = model(Setting(31, 16))
    assert text(wide, "prompt", 100) == text(wide, "prompt", 100)


def test_a_known_task_is_answered_with_its_solution_or_seldom_with_the_near_miss(
    tasks: Path,
) -> None:
    clean = model(Setting(8, 4), tasks=tasks)
    answers = [text(clean, f"# variant {n}\nWrite add(a, b). Please.", 400) for n in range(300)]
    right = "```python\ndef add(a, b):\n    return a + b\n```\n"
    wrong = right.replace("+", "-")
    assert set(answers) == {right, wrong}
    assert 1 <= answers.count(wrong) <= 20


def test_a_garbling_setting_fails_tasks(tasks: Path) -> None:
    wide = model(Setting(31, 16), tasks=tasks)
    prompts = [f"{n} Write add(a, b)." for n in range(60)]
    passed = sum("return a + b" in text(wide, p, 400) for p in prompts)
    assert passed < 25


def test_garble_wide_garbles_everything_above_its_threshold() -> None:
    assert model(Setting(12, 6), "garble-wide").corruption_rate == 1.0
    assert model(Setting(8, 4), "garble-wide").corruption_rate == 0.0
    assert model(Setting(8, 4), "garble-wide:30").corruption_rate == 1.0


def test_a_task_without_its_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('[[task]]\nname = "x"\nprompt = "y"\n')
    with pytest.raises(ValueError, match="no solution, near_miss"):
        load_tasks(tmp_path)


def test_faults_are_read_with_arguments_and_defaults() -> None:
    faults = Faults.parse("no-usage, crash-bucket:7,stall-bucket")
    assert Fault.NO_USAGE in faults
    assert Fault.ORPHAN not in faults
    assert faults.argument(Fault.CRASH_BUCKET) == 7
    assert faults.argument(Fault.STALL_BUCKET) == 8
    assert faults.argument(Fault.ORPHAN) is None


@pytest.mark.parametrize("bad", ["no-such-fault", "crash-bucket:0", "crash-bucket:many"])
def test_wrong_faults_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match=r"fault|float"):
        Faults.parse(bad)


def test_every_nth_event_is_hit() -> None:
    faults = Faults.parse("error-200:3")
    assert [n for n in range(1, 8) if faults.hits(Fault.ERROR_200, n)] == [3, 6]


def test_noise_is_repeatable_and_of_the_asked_size() -> None:
    first, second = (Noise(shared_sd=0.02, bucket_sd=0.03, seed=5) for _ in range(2))
    draws = [first.factor() for _ in range(20_000)]
    assert draws[:50] == [second.factor() for _ in range(50)]
    logs = [math.log(d / first.shared) for d in draws]
    spread = math.sqrt(sum(x * x for x in logs) / len(logs))
    assert spread == pytest.approx(0.03, rel=0.35)
    neighbours = [abs(a - b) for a, b in itertools.pairwise(logs)]
    assert max(neighbours) < 0.02  # it drifts, it does not jump


def test_without_noise_the_factor_is_one() -> None:
    assert Noise(shared_sd=0, bucket_sd=0, seed=None).factor() == 1.0


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.observe(0.1)
    histogram.observe(0.5, 3)
    histogram.observe(9.0)
    assert histogram.cumulative() == [("0.1", 1), ("1.0", 4), ("+Inf", 5)]
    assert histogram.count == 5
    assert histogram.total == pytest.approx(10.6)
