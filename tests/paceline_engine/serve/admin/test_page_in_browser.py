"""The page in a real browser, over a real engine under load."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx
import pytest

from paceline_crds import routes
from paceline_engine.testing.server_process import ServerProcess, server_process
from paceline_engine.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.slow

TOKEN = "hemlock-and-rye"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
OFFLINE = ("--disable-background-networking", "--disable-component-update")


@pytest.fixture(scope="module")
def browser(
    require_program: Callable[[str], str], leave_out: Callable[[str], NoReturn]
) -> Iterator[Any]:
    program = require_program("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        leave_out("needs the package playwright")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=[*FLAGS, *OFFLINE])
        yield opened
        opened.close()


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


@contextmanager
def load_on(server: ServerProcess, *, clients: int = 6) -> Iterator[None]:
    """So many clients ask again and again."""
    is_over = threading.Event()

    def ask(number: int) -> None:
        prompt = [10 + number, *range(20, 70)]
        body = {"model": "model", "prompt": prompt, "max_tokens": 60, "ignore_eos": True}
        with httpx.Client(timeout=60) as http:
            while not is_over.is_set():
                http.post(server.url + routes.COMPLETIONS, json=body).raise_for_status()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


class Watched:
    """A page of the browser and everything it complained of or asked for."""

    def __init__(self, browser: Any, url: str) -> None:
        self.page = browser.new_page(viewport={"width": 1440, "height": 1100})
        self.complaints: list[str] = []
        self.urls: list[str] = []
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.urls.append(request.url))
        self.page.goto(url)

    def _heard(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.complaints.append(text)

    def give(self, token: str) -> None:
        self.page.fill("#token", token)
        self.page.click("#token-form button")

    def until(self, script: str) -> None:
        """Ask again until it is so; the page's policy lets nobody wait inside of it."""
        give_up_s = time.monotonic() + 30
        while not self.page.evaluate(f"Boolean({script})"):
            told = self.page.text_content("#problem")
            assert time.monotonic() < give_up_s, f"{script} never held; the page says {told!r}"
            self.page.wait_for_timeout(50)

    def figure(self, tile: str) -> str:
        return str(self.page.inner_text(f"#tile-{tile} b"))


@pytest.fixture
def watched(browser: Any, server: ServerProcess) -> Iterator[Watched]:
    opened = Watched(browser, server.admin_url)
    yield opened
    opened.page.close()


def test_figures_move_under_load_and_a_setting_is_switched(
    watched: Watched, server: ServerProcess
) -> None:
    page = watched.page
    with load_on(server):
        watched.give(TOKEN)
        watched.until("document.querySelector('#tile-waiting.warn')")
        watched.until("document.querySelectorAll('#request-rows tr').length >= 4")
        watched.until("document.querySelector('#reasons').innerText.includes('SequenceLimit')")
        watched.until("/^[1-3] of 3$/.test(document.querySelector('#tile-running b').innerText)")
        for chart in ("steps", "budget", "requests", "blocks"):
            watched.until(f"document.querySelector('#chart-{chart} .area').getAttribute('d')")
        before = page.inner_text("#tile-running span:last-child")
        drawn = page.get_attribute("#chart-steps .c1.area", "d")
        watched.until(
            f"document.querySelector('#tile-running span:last-child').innerText !== {before!r}"
        )
        assert page.get_attribute("#chart-steps .c1.area", "d") != drawn
        assert float(watched.figure("output").split()[0].replace(",", "")) > 0

        field = "[data-name=maxNumSeqs] input"
        page.fill(field, "5")
        page.click("[data-name=maxNumSeqs] button")
        watched.until("document.querySelector('#settings-note.good')")
        assert "maxNumSeqs 3 → 5" in page.inner_text("#settings-note")
        assert page.input_value(field) == "5"
        watched.until("/^[1-5] of 5$/.test(document.querySelector('#tile-running b').innerText)")
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
    watched: Watched, server: ServerProcess
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
    watched: Watched, server: ServerProcess
) -> None:
    page = watched.page
    watched.give(TOKEN)
    watched.until("document.querySelector('#state.good')")
    page.fill("[data-name=maxNumBatchedTokens] input", "100000")
    page.press("[data-name=maxNumBatchedTokens] input", "Enter")
    watched.until("document.querySelector('#settings-note.bad')")
    assert "bootMaxNumBatchedTokens" in page.inner_text("#settings-note")
    assert page.input_value("[data-name=maxNumBatchedTokens] input") == "100000"


def test_the_tuners_story_is_text_and_no_markup(watched: Watched) -> None:
    watched.give(TOKEN)
    watched.until("document.querySelector('#tuner .story li')")
    story = watched.page.inner_text("#tuner")
    assert "maxNumSeqs 4 → 8" in story
    assert "<b>goodput</b> +70%" in story
    assert "Accepted" in story


def test_both_themes_are_readable(watched: Watched) -> None:
    """Text stands out from its ground by the 4.5 to 1 of WCAG 2.2, success criterion 1.4.3."""
    watched.give(TOKEN)
    watched.until("document.querySelector('#state.good')")
    for theme in ("light", "dark"):
        watched.page.evaluate(f"document.documentElement.dataset.theme = {theme!r}")
        for selector in ("h1", "#about", ".tile span", ".setting code", "th"):
            ratio = watched.page.evaluate(CONTRAST, selector)
            assert ratio >= 4.5, (theme, selector, ratio)


CONTRAST = """selector => {
  const element = document.querySelector(selector);
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let ground = element;
  const clear = "rgba(0, 0, 0, 0)";
  while (getComputedStyle(ground).backgroundColor === clear) ground = ground.parentElement;
  const [a, b] = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor]
    .map(light).sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


def test_the_arithmetic_of_the_page(watched: Watched) -> None:
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
