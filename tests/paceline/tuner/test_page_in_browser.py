"""The page of a fleet in a real browser: a real Prometheus scrapes real engines under load."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from paceline_crds import routes
from paceline_engine.testing.browser import CONTRAST, Watched
from paceline_engine.testing.clients import clients
from paceline_engine.testing.server_process import ServerProcess, server_process
from paceline_engine.testing.tiny_model import TinyModel
from paceline_operator.testing.prometheus import free_address, prometheus, target

pytestmark = pytest.mark.slow

NUM_CLIENTS = 12
WITHIN_S = 90.0
"""Three windows of four seconds have to pass, and machines for tests are busy."""


class Prometheuses:
    """One Prometheus at one address, which can be away for a while."""

    def __init__(self, program: str, engine: ServerProcess, folder: Path) -> None:
        pages = [target(engine.url, namespace="models", pod="chat-0")]
        self._how = (program, {"one": pages, "two": pages}, folder)
        self._address = free_address()
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        return f"http://{self._address}"

    def start(self) -> None:
        one = prometheus(*self._how, interval="500ms", address=self._address)
        self._stack.enter_context(one)

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("engine")
    model = TinyModel(hidden_size=16, num_layers=1).write(folder / "model")
    flags = ["--max-model-len=256", "--max-num-seqs=2", "--num-kv-blocks=512", "--dtype=float32"]
    with server_process(str(model), folder, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def scraped(
    require_program: Callable[[str], str],
    engine: ServerProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheuses]:
    made = Prometheuses(require_program("prometheus"), engine, tmp_path_factory.mktemp("tsdb"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def url(scraped: Prometheuses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The command as a person starts it."""
    log = tmp_path_factory.mktemp("page") / "log"
    command = [sys.executable, "-m", "paceline", "tune", "--prometheus", scraped.url]
    command += ["--selector", "namespace=models", "--window", "4s", "--serve", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        give_up_s = time.monotonic() + WITHIN_S
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up_s
            time.sleep(0.05)
        yield found.group()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def load_on(engine: ServerProcess) -> AbstractContextManager[None]:
    """More clients than there are places ask again and again."""
    body = {"model": "model", "prompt": "one two three", "max_tokens": 128, "ignore_eos": True}
    return clients(NUM_CLIENTS, lambda _: engine.post(routes.COMPLETIONS, body))


@pytest.fixture
def watched(browser: Any, url: str) -> Iterator[Watched]:
    opened = Watched(browser, url)
    yield opened
    opened.page.close()


def test_figures_move_what_ails_is_told_and_prometheus_may_go_and_come_back(
    watched: Watched, engine: ServerProcess, scraped: Prometheuses, url: str
) -> None:
    page = watched.page

    def until(script: str) -> None:
        watched.until(script, within_s=WITHIN_S)

    with load_on(engine):
        until("document.querySelector('.tile.warn[data-name=waiting]')")
        assert page.inner_text("h2.name") == "models/model"
        until("document.querySelector('[data-name=running] b').innerText === '2 of 2'")
        assert page.inner_text(".engines tbody td:first-child") == "chat-0"
        for chart in ("requests", "kv", "output", "step", "itl", "ttft"):
            until(f"document.querySelector('.charts .{chart} .area').getAttribute('d')")
        drawn = page.get_attribute(".charts .output .area", "d")
        output = page.inner_text(".tile[data-name=output]")
        until(f"document.querySelector('.charts .output .area').getAttribute('d') !== {drawn!r}")
        until(f"document.querySelector('.tile[data-name=output]').innerText !== {output!r}")

        until("document.querySelector('.diagnosis .story .change')")
        story = page.inner_text(".diagnosis .story")
        assert "spec.scheduling.maxNumSeqs: 4" in story
        assert re.search("CapTooLow|QueueWait", story)
        assert re.search(r"[wW]aiting \d", story)  # the figures by which it was told
        assert "symptom" in page.inner_text(".set > header .pill")

        scraped.stop()
        until("!document.querySelector('#problem').hidden")
        assert f"Prometheus at {scraped.url} does not answer" in page.inner_text("#problem")
        assert page.is_visible(".stale")
        assert page.inner_text("#state") == "no data"
        assert "spec.scheduling.maxNumSeqs: 4" in page.inner_text(".diagnosis .story")
        scraped.start()
        until("document.querySelector('#problem').hidden")
        until("document.querySelector('.stale') === null")
        until("document.querySelector('[data-name=running] b').innerText === '2 of 2'")

    assert watched.complaints == []
    assert {urlsplit(asked).netloc for asked in watched.urls} == {urlsplit(url).netloc}


def test_a_page_that_is_held_asks_for_nothing(watched: Watched) -> None:
    watched.until("document.querySelector('.tile')", within_s=WITHIN_S)
    watched.page.click("#hold")
    watched.page.wait_for_load_state("networkidle")
    asked = len(watched.urls)
    watched.page.wait_for_timeout(2500)  # longer than a turn
    assert len(watched.urls) == asked


def test_both_themes_are_readable(watched: Watched) -> None:
    """Text stands out from its ground by the 4.5 to 1 of WCAG 2.2, success criterion 1.4.3."""
    watched.until("document.querySelector('.engines td')", within_s=WITHIN_S)
    for theme in ("light", "dark"):
        watched.page.evaluate(f"document.documentElement.dataset.theme = {theme!r}")
        for selector in ("h1", "#about", ".tile span", ".set .about", ".engines td", "summary"):
            ratio = watched.page.evaluate(CONTRAST, selector)
            assert ratio >= 4.5, (theme, selector, ratio)
