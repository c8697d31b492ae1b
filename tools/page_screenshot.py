"""Take the pictures of `docs/page.md`: `python tools/page_screenshot.py docs`; three minutes.

The demo model serves two requests at a time, more clients than that ask, and the tuner of
`paceline run` turns what has to be turned; a person switches one setting on the page. Needs the
packages of the extras engine and dev, and Debian's chromium.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright import sync_api
from playwright.sync_api import Page, sync_playwright

MANIFEST = """
apiVersion: paceline.dev/v1alpha1
kind: LLMDeployment
metadata: {name: chat}
spec:
  model: {uri: URI, servedName: smollm2-135m}
  slo: {ttft: {target: 4s}, itl: {target: 250ms}}
  scheduling: {interTokenTargetMs: 150, maxNumSeqs: 2, bootMaxNumSeqs: 16}
  tuning:
    mode: Auto
    window: 10s
    cooldown: 0s
    minRequests: 20
    bounds: {maxNumSeqs: {min: 2, max: 16}}
"""
LOADS = (
    ("heavy_tail", "--mode", "closed", "--concurrency", "9", "--repeats", "9"),
    ("shared_prefix", "--mode", "poisson", "--rate", "0.25", "--repeats", "9"),
)
ADMIN = re.compile(r"\$\(cat (\S+)\).*?(http://127\.0\.0\.1:\d+)/", re.DOTALL)
STORY_WITHIN_S = 60
SIZE = {"width": 1440, "height": 900}
FLAGS = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"]


def main() -> None:
    """Pictures into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    model = sys.argv[2] if len(sys.argv) > 2 else "demo"
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        manifest = scratch / "chat.yaml"
        manifest.write_text(MANIFEST.replace("URI", model), encoding="utf-8")
        flags = ("-f", str(manifest), "--port", "8077", "--no-sample")
        said = stack.enter_context(paceline(scratch / "run.log", "run", *flags))
        token_file, url = until(lambda: ADMIN.search(said.read_text()), 300).groups()
        for name, *how in LOADS:
            bench = ("bench", "serve", "--base-url", "http://127.0.0.1:8077", "--workload", name)
            stack.enter_context(paceline(scratch / f"{name}.log", *bench, *how))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(url)
        page.fill("#token", Path(token_file).read_text(encoding="utf-8").strip())
        page.press("#token", "Enter")
        try:
            take(page, folder)
        finally:
            print(said.read_text(encoding="utf-8"))
            browser.close()


def take(page: Page, folder: Path) -> None:
    """When the tuner has something to tell and a setting has been switched, in both themes."""
    page.select_option("#span", "180")
    try:
        page.wait_for_selector("#tuner .story li.good", timeout=STORY_WITHIN_S * 1000)
    except sync_api.TimeoutError:
        print("no change was accepted by now; the pictures are taken all the same")
    page.fill("[data-name=maxNumSeqs] input", "8")
    page.press("[data-name=maxNumSeqs] input", "Enter")
    time.sleep(40)
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        time.sleep(1.5)
        page.screenshot(path=folder / f"page-{theme}.png", full_page=True)


@contextmanager
def paceline(log: Path, *arguments: str) -> Iterator[Path]:
    """A command of ours, ended by SIGINT; its output goes to the file."""
    command = [sys.executable, "-m", "paceline", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    time.sleep(2)
    if process.poll() is not None:
        raise SystemExit(log.read_text(encoding="utf-8"))
    try:
        yield log
    finally:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.wait(60)


def until(found, within_s: float):
    """What is found once it is there."""
    give_up_s = time.monotonic() + within_s
    while not (value := found()):
        if time.monotonic() > give_up_s:
            raise SystemExit("it did not happen in time")
        time.sleep(0.5)
    return value


if __name__ == "__main__":
    main()
