"""The report in a real Chromium: both themes, a phone's width, paper; nothing leaves the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.report.page import write_report
from autotune.repository import StoredStudy
from tests.unit.test_report_page import nothing_completed, whole_study

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
)
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
# the page's own policy forbids `wait_for_function`, which evaluates text in the page
TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
STUDIES = {"whole": whole_study(), "only failures": nothing_completed()}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # a container has no user namespaces for chromium's own sandbox; the page is ours
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module", params=STUDIES)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    study: StoredStudy = STUDIES[request.param]
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(study, path)
    return path


def opened(browser: Any, report: Path, *, scheme: str, width: int) -> tuple[Any, list[str]]:
    """The page, and what went wrong while it was opened."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    faults: list[str] = []
    page.on("console", lambda message: faults.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("data:", "blob:", report.as_uri()))
            else faults.append(f"request: {request.url}")
        ),
    )
    page.goto(report.as_uri())
    drawn = "[...document.querySelectorAll('[data-figure]')].every(p => p.querySelector('svg'))"
    assert page.evaluate(drawn)
    return page, faults


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_clean_and_accessible(
    browser: Any, report: Path, scheme: str, width: int
) -> None:
    page, faults = opened(browser, report, scheme=scheme, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(page).response
    assert len(found["passes"]) > 20
    serious = [
        (one["id"], [node["html"] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert faults == []
    page.close()


def test_figures_follow_the_theme_and_the_paper(browser: Any, report: Path) -> None:
    page, faults = opened(browser, report, scheme="light", width=1200)
    ink = (
        "getComputedStyle(document.querySelector('[data-figure] svg text')).fill + "
        "getComputedStyle(document.body).backgroundColor"
    )
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.evaluate(TWO_FRAMES)
    dark = page.evaluate(ink)
    assert dark != light
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(ink) == light
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(ink) == dark
    assert faults == []
    page.close()


def test_the_keyboard_reaches_the_verdict_and_copies_the_flags(
    browser: Any, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    write_report(whole_study(), path)
    page, faults = opened(browser, path, scheme="light", width=1200)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    page.locator("[data-copy]").first.focus()
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#said")).not_to_have_text("")
    assert faults == []
    page.close()
