"""The page in a real browser, over a real engine under load."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from paceline_crds import routes
from paceline_engine.testing.browser import CONTRAST, Watched
from paceline_engine.testing.clients import clients
from paceline_engine.testing.server_process import ServerProcess, server_process
from paceline_engine.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.slow

TOKEN = "hemlock-and-rye"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "tuning.json").write_text(
        '{"state": "Watching", "history": [{"id": "1", "setting": "maxNumSeqs", "before": "4", '
        '"after": "8", "outcome": "Accepted", "reason": "<b>goodput</b> +70%", "symptom": '
        '"CapTooLow", "ended": "2026-01-31T10:00:00Z"}]}'
    )
    flags = ("--num-kv-blocks", "48", "--max-num-seqs", "3", "--max-num-batched-tokens", "32")
    files = ("--admin-token-file", folder / "token", "--tuning-file", folder / "tuning.json")
    model = write_tiny_model(folder / "model")
    with server_process(str(model), folder, *flags, *map(str, files)) as running:
        yield running


def load_on(server: ServerProcess) -> AbstractContextManager[None]:
    """Six clients ask again and again."""

    def ask(number: int) -> None:
        prompt = [10 + number, *range(20, 70)]
        body = {"model": "model", "prompt": prompt, "max_tokens": 60, "ignore_eos": True}
        server.post(routes.COMPLETIONS, body)

    return clients(6, ask)


class EnginesPage(Watched):
    """The page of an engine."""

    def give(self, token: str) -> None:
        self.page.fill("#token", token)
        self.page.click("#token-form button")


@pytest.fixture
def watched(browser: Any, server: ServerProcess) -> Iterator[EnginesPage]:
    opened = EnginesPage(browser, server.admin_url)
    yield opened
    opened.page.close()


def test_figures_move_under_load_and_a_setting_is_switched(
    watched: EnginesPage, server: ServerProcess
) -> None:
    page = watched.page
    with load_on(server):
        watched.give(TOKEN)
        watched.until("document.querySelector('.tile[data-name=waiting].warn')")
        watched.until("document.querySelectorAll('#request-rows tr').length >= 4")
        watched.until("document.querySelector('#reasons').innerText.includes('SequenceLimit')")
        watched.until(
            "/^[1-3] of 3$/.test(document.querySelector('.tile[data-name=running] b').innerText)"
        )
        for chart in ("steps", "budget", "requests", "blocks"):
            watched.until(f"document.querySelector('#chart-{chart} .area').getAttribute('d')")
        before = page.inner_text(".tile[data-name=running] span:last-child")
        drawn = page.get_attribute("#chart-steps .c1.area", "d")
        ended = "document.querySelector('.tile[data-name=running] span:last-child').innerText"
        watched.until(f"{ended} !== {before!r}")
        assert page.get_attribute("#chart-steps .c1.area", "d") != drawn
        assert float(watched.figure("output").split()[0].replace(",", "")) > 0

        field = "[data-name=maxNumSeqs] input"
        page.fill(field, "5")
        page.click("[data-name=maxNumSeqs] button")
        watched.until("document.querySelector('#settings-note.good')")
        assert "maxNumSeqs 3 → 5" in page.inner_text("#settings-note")
        assert page.input_value(field) == "5"
        watched.until(
            "/^[1-5] of 5$/.test(document.querySelector('.tile[data-name=running] b').innerText)"
        )
        watched.until("document.querySelector('#chart-requests .turn')")
    said = httpx.get(
        server.admin_url + routes.ADMIN_SETTINGS, headers={"Authorization": f"Bearer {TOKEN}"}
    ).json()
    assert said["settings"]["maxNumSeqs"] == 5

    assert watched.complaints == []
    assert {urlsplit(url).netloc for url in watched.urls} == {urlsplit(server.admin_url).netloc}
    assert not any(TOKEN in url for url in watched.urls)
    kept = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
    assert kept == [0, 0, ""]
    assert TOKEN not in page.content()
    assert page.input_value("#token") == ""


def test_a_wrong_token_is_told_and_the_right_one_opens(
    watched: EnginesPage, server: ServerProcess
) -> None:
    page = watched.page
    watched.until("!document.querySelector('#token-form').hidden")
    assert page.is_visible("#token")
    assert not page.is_visible("#problem")
    watched.give("wrong")
    watched.until("!document.querySelector('#problem').hidden")
    assert "is not accepted" in page.inner_text("#problem")
    asked = len(watched.urls)
    page.wait_for_timeout(2500)  # longer than a turn: a refused token is not sent again
    assert len(watched.urls) == asked
    watched.give(TOKEN)
    watched.until("document.querySelector('#state.good')")
    assert not page.is_visible("#problem")
    assert all("401" in text for text in watched.complaints)
    assert page.is_visible("#forget")
    assert not page.is_visible("#token")


def test_a_refused_value_is_told_in_the_engines_words(
    watched: EnginesPage, server: ServerProcess
) -> None:
    page = watched.page
    watched.give(TOKEN)
    watched.until("document.querySelector('#state.good')")
    page.fill("[data-name=maxNumBatchedTokens] input", "100000")
    page.press("[data-name=maxNumBatchedTokens] input", "Enter")
    watched.until("document.querySelector('#settings-note.bad')")
    assert "bootMaxNumBatchedTokens" in page.inner_text("#settings-note")
    assert page.input_value("[data-name=maxNumBatchedTokens] input") == "100000"


def test_the_tuners_story_is_text_and_no_markup(watched: EnginesPage) -> None:
    watched.give(TOKEN)
    watched.until("document.querySelector('#tuner .story li')")
    story = watched.page.inner_text("#tuner")
    assert "maxNumSeqs 4 → 8" in story
    assert "<b>goodput</b> +70%" in story
    assert "Accepted" in story


def test_both_themes_are_readable(watched: EnginesPage) -> None:
    """Text stands out from its ground by the 4.5 to 1 of WCAG 2.2, success criterion 1.4.3."""
    watched.give(TOKEN)
    watched.until("document.querySelector('#state.good')")
    for theme in ("light", "dark"):
        watched.page.evaluate(f"document.documentElement.dataset.theme = {theme!r}")
        for selector in ("h1", "#about", ".tile span", ".setting code", "th"):
            ratio = watched.page.evaluate(CONTRAST, selector)
            assert ratio >= 4.5, (theme, selector, ratio)


def test_the_arithmetic_of_the_page(watched: EnginesPage) -> None:
    found = watched.page.evaluate(
        """async () => {
          const f = await import("./figures.js");
          const now = new Map([[0.1, 4], [0.2, 10], [Infinity, 10]]);
          const then = new Map([[0.1, 4], [0.2, 4], [Infinity, 4]]);
          const step = (planned, applied) => ({plannedS: planned, appliedS: applied, planMs: 0});
          const page = f.parseMetrics('a{x="1, } y"} 3\\nb 2.5\\n# HELP c\\nc_bucket{le="+Inf"} 4');
          return {
            median: f.histogramQuantile(now, null, 0.4),
            grown: f.histogramQuantile(now, then, 0.5),
            none: f.histogramQuantile(now, now, 0.5),
            spans: f.spans([step(0, 1), step(1, 2), step(9, 10)], 0, 10, 1.5)
              .map(s => [s.from, s.to]),
            queued: f.spans([{...step(0, 2), queuedMs: 1000}], 0, 10, 1.5)
              .map(s => [s.from, s.to]),
            a: [{x: "1, } y"}, {x: "2"}].map(x => f.total(page, "a", x)),
            b: f.total(page, "b"),
            edges: [...f.buckets(page, "c")],
            axis: [f.axis(7), f.axis(230)],
            text: [f.ms(2.34), f.ms(230), f.ms(12345), f.ms(null), f.age(75)],
          };
        }"""
    )
    assert found["median"] == pytest.approx(0.1)
    assert found["grown"] == pytest.approx(0.15)
    assert found["none"] is None
    assert found["spans"] == [[0, 2], [9, 10]]  # eight seconds without a step are idleness
    assert found["queued"] == [[1, 2]]  # planned while another step ran
    assert (found["a"], found["b"]) == ([3, 0], 2.5)
    assert found["edges"] == [[float("inf"), 4]]
    assert [(one["step"], one["top"]) for one in found["axis"]] == [(2, 8), (100, 300)]
    assert found["text"] == ["2.3 ms", "230 ms", "12.3 s", "–", "1 min 15 s"]
