"""A real browser, and a page in it that is watched: for tests of pages."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
_OFFLINE = ("--disable-background-networking", "--disable-component-update")

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
"""Script: how far the text of the first element stands out from its ground, as WCAG 2.2 has it."""


@contextmanager
def opened(program: str) -> Iterator[Any]:
    """A browser of playwright's.

    Args:
        program: path of a chromium.

    Raises:
        ImportError: there is no playwright.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*_FLAGS, *_OFFLINE])
        yield browser
        browser.close()


class Watched:
    """A page of the browser, and everything it complained of or asked for.

    Attributes:
        page: playwright's.
        complaints: errors and warnings of the console, and exceptions.
        urls: of requests.
    """

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

    def until(self, script: str, *, within_s: float = 30.0) -> None:
        """Ask again until it is so; the page's policy lets nobody wait inside of it."""
        give_up_s = time.monotonic() + within_s
        while not self.page.evaluate(f"Boolean({script})"):
            told = self.page.text_content("#problem")
            assert time.monotonic() < give_up_s, f"{script} never held; the page says {told!r}"
            self.page.wait_for_timeout(50)

    def figure(self, tile: str) -> str:
        """The figure of a tile."""
        return str(self.page.inner_text(f".tile[data-name={tile}] b"))
