"""The report as text: every kind of study gives a whole, escaped, self-contained page."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.errors import ConfigError
from autotune.measurement import CodingResult, Ending
from autotune.report.page import render, write_report
from autotune.repository import Role, StoredStudy
from autotune.verdict import VerdictKind
from tests.builders import (
    DEPLOYED,
    a_conclusion,
    a_definition,
    a_failure,
    a_start,
    a_study,
    a_trial,
    proof_links,
)

MOST_BYTES = 6_000_000
VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})
EVIL = "<script>alert('1')</script><img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """What a reader meets: headings, landmarks, text, scripts; unbalanced tags are errors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[tuple[int, str]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append((int(tag[1]), ""))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        if where == "script":
            self.scripts[-1] += data
        elif where != "style":
            self.text.append(data)
        if re.fullmatch("h[1-6]", where):
            level, text = self.headings[-1]
            self.headings[-1] = (level, text + data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).replace("\xa0", " ").split())

    def ids(self) -> list[str]:
        return [found for _, attrs in self.tags if (found := attrs.get("id"))]

    def titles(self) -> list[str]:
        return [text for _, text in self.headings]


def nothing_completed() -> StoredStudy:
    broken = a_failure(
        "SettingsNotApplied", "link 'argv' is broken: wanted --x 1, seen nothing", link="argv"
    )
    starts = [
        a_start(
            None, at_h=n, ending=Ending.FAILED, failure=broken, proof=proof_links(broken="argv")
        )
        for n in range(3)
    ]
    return a_study(*(a_trial(n, s, reference=n == 0) for n, s in enumerate(starts)))


def whole_study() -> StoredStudy:
    coding = CodingResult({}, 190, 10, {"passed": 190, "wrong": 7, "no_answer": 3})
    reference = a_trial(
        0,
        a_start(1.0, role=Role.REFERENCE, coding=coding),
        a_start(1.01, at_h=4, role=Role.REFERENCE),
        *(a_start(1.0, at_h=6 + n, role=Role.FINAL, round_=n) for n in range(2)),
        reference=True,
    )
    winner = a_trial(
        1,
        a_start(1.15, at_h=1, coding=coding),
        *(a_start(1.12, at_h=8 + n, role=Role.FINAL, round_=n) for n in range(2)),
        budget=16,
        window=2048,
    )
    return a_study(
        reference,
        winner,
        a_trial(2, a_start(None, at_h=2, ending=Ending.INFEASIBLE, failure=a_failure()), budget=64),
        a_trial(3, a_start(0.9, at_h=3), topk=1),
        a_trial(4, a_start(None, at_h=3.5, ending=Ending.PRUNED), budget=32),
        a_trial(5, a_start(1.3, at_h=3.7, violations=("bucket 60x1 is slow",)), state="infeasible"),
        a_trial(6, a_start(None, at_h=5, ending=None)),
        verdict=a_conclusion(parameters={**DEPLOYED, "budget": 16, "window": 2048}),
    )


def kept() -> StoredStudy:
    return a_study(
        a_trial(0, a_start(), reference=True),
        a_trial(1, a_start(1.01, at_h=1), budget=16),
        verdict=a_conclusion(VerdictKind.NO_SIGNIFICANT_DIFFERENCE, trial=0, ratio=1.004),
    )


STUDIES = {
    "empty": a_study(),
    "a running trial": a_study(a_trial(0, a_start(None, ending=None), reference=True)),
    "a trial without a start": a_study(a_trial(0)),
    "only failures": nothing_completed(),
    "one reference": a_study(a_trial(0, a_start(), reference=True)),
    "one trial without a reference": a_study(a_trial(0, a_start(1.1))),
    "no difference": kept(),
    "not enough data": a_study(
        a_trial(0, a_start(), reference=True),
        a_trial(1, a_start(1.2, at_h=1), budget=16),
        verdict=a_conclusion(
            VerdictKind.NOT_ENOUGH_DATA,
            ratio=None,
            sentence="not enough data: no finalist was measured again",
        ),
    ),
    "a bare definition": a_study(a_trial(0, a_start(), reference=True), definition={}),
    "whole": whole_study(),
}


@cache
def rendered(name: str) -> tuple[str, Page]:
    html = render(STUDIES[name])
    return html, Page(html)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_gives_a_page_that_reads_well(name: str) -> None:
    html, page = rendered(name)
    levels = [level for level, _ in page.headings]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(text.strip() for text in page.titles())
    tags = [tag for tag, _ in page.tags]
    assert tags.count("main") == tags.count("title") == 1
    assert ("html", {"lang": "en"}) in page.tags
    ids = page.ids()
    assert len(set(ids)) == len(ids)
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert links <= {f"#{one}" for one in ids}
    assert len(html.encode()) < MOST_BYTES
    assert "nan" not in page.words.lower().split()


def test_the_same_study_gives_the_same_text() -> None:
    assert render(whole_study()) == render(whole_study())


@pytest.mark.parametrize("name", STUDIES)
def test_nothing_is_loaded_from_outside(name: str) -> None:
    html, page = rendered(name)
    for tag, attrs in page.tags:
        for key in ("src", "srcset", "href", "action", "data", "poster"):
            target = attrs.get(key)
            assert target is None or target.startswith(("#", "data:")), (tag, target)
    style = "".join(re.findall("<style>(.*?)</style>", html, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style
    policies = [a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a]
    assert len(policies) == 1
    assert "default-src 'none'" in str(policies[0])


@pytest.mark.parametrize("name", STUDIES)
def test_every_figure_has_words_and_a_table(name: str) -> None:
    html, page = rendered(name)
    drawn = json.loads(page.scripts[0])
    plots = [attrs for _, attrs in page.tags if "data-figure" in attrs]
    assert {attrs["data-figure"] for attrs in plots} == set(drawn)
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in plots)
    for figure in re.findall("<figure.*?</figure>", html, re.DOTALL):
        caption = re.search("<figcaption>(.*?)</figcaption>", figure, re.DOTALL)
        assert caption is not None
        assert len(caption.group(1)) > 20
        assert "<details>" in figure
        assert "<td" in figure


def test_the_winner_comes_first_with_its_interval_and_its_flags() -> None:
    _, page = rendered("whole")
    assert (
        "Use budget 16, topk 4, window 2048: it scores 12.0 % above the deployed configuration "
        "(95 % interval 9.0 % to 15.0 %)." in page.words
    )
    assert "--speculative-ddtree-budget 16 \\ --speculative-ddtree-topk-cap 4 \\" in page.words
    assert page.titles()[:2] == ["demo", "Verdict"]
    assert "all 24 links of its 3 starts hold" in page.words
    assert "The reference passed 190 of 200 in 1 start and trial 1 passed 190 of 200" in page.words
    for section in ("Finalists against the deployed configuration", "Failures", "Proof", "Hosts"):
        assert section in page.titles()


def test_a_flag_that_is_left_out_is_named() -> None:
    _, page = rendered("no difference")
    assert "Keep the deployed configuration: the best finalist" in page.words
    assert "+0.4 % (95 % interval −2.6 % to +3.4 %)" in page.words
    assert "Left out of the command: --speculative-draft-window-size" in page.words


def test_a_study_in_which_nothing_completed_says_the_common_reason_first() -> None:
    _, page = rendered("only failures")
    assert (
        "Nothing could be measured: all 3 starts failed for the same reason: link 'argv' is broken"
        in page.words
    )
    assert page.titles()[1:4] == [
        "Verdict",
        "Failures",
        "A setting that was asked for did not run, link “argv”",
    ]
    assert "torch.OutOfMemoryError" in page.words


def test_without_a_verdict_the_best_observed_is_not_called_the_result() -> None:
    _, page = rendered("not enough data")
    assert "not enough data: no finalist was measured again." in page.words
    assert "The best observed so far is trial 1" in page.words
    assert "The best observed so far, trial 1: not proven better" in page.titles()


def test_foreign_text_is_escaped_everywhere() -> None:
    failure = a_failure(EVIL, EVIL, link=EVIL, log_tail=[EVIL, "</pre></script>"])
    links = [*proof_links()]
    study = a_study(
        a_trial(0, a_start(host=EVIL), reference=True),
        a_trial(1, a_start(1.1, at_h=1, host=EVIL, proof=tuple(links)), window=EVIL),
        a_trial(2, a_start(None, at_h=2, ending=Ending.FAILED, failure=failure, host=EVIL)),
        name=EVIL,
        verdict=a_conclusion(parameters={**DEPLOYED, "window": EVIL}),
    )
    html = render(study)
    page = Page(html)
    assert "img" not in {tag for tag, _ in page.tags}
    assert not [attrs for _, attrs in page.tags if "onerror" in attrs]
    assert len(page.scripts) == 3
    assert EVIL in page.words
    # plotly reads tags in its texts
    assert "<img" not in json.dumps(json.loads(page.scripts[0]))


def test_terminal_codes_and_unprintable_characters_do_not_reach_the_page(tmp_path: Path) -> None:
    line = "\x1b[31mred\x1b[0m \x00 \u202egnp.exe \ud800"
    failure = a_failure(log_tail=[line])
    study = a_study(a_trial(0, a_start(None, ending=Ending.FAILED, failure=failure)))
    write_report(study, tmp_path / "report.html")
    written = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "red � �gnp.exe �" in written


def test_long_logs_are_cut_and_counted() -> None:
    failure = a_failure(log_tail=[f"line {n} {'x' * 5000}" for n in range(500)])
    study = a_study(
        *(a_trial(n, a_start(None, ending=Ending.FAILED, failure=failure)) for n in range(60))
    )
    html = render(study)
    assert len(html.encode()) < MOST_BYTES
    assert "line 499 " in html
    assert "60×" in html
    assert "and 40 more" in html


def test_caveats_name_the_simulated_server_and_the_weaker_sandbox() -> None:
    definition = a_definition(
        command="{python} -m autotune.testing.sglang_server", sandbox="weak", gpus_per_host=1
    )
    simulated = Page(render(a_study(definition=definition))).words
    assert "The server was simulated" in simulated
    assert "weaker sandbox" in simulated
    real = rendered("whole")[1].words
    assert "simulated" not in real
    assert "weaker sandbox" not in real


def test_a_place_that_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report(a_study(), tmp_path / "missing" / "report.html")


def test_an_older_report_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(a_study(), path)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]
