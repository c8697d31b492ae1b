"""The page's files: who gets them, what they may do, and that nothing comes from outside."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from paceline_crds import routes
from paceline_crds.settings import EngineSettings
from paceline_engine.serve.admin import page
from paceline_engine.serve.admin.admin import create_admin_app
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.step.in_process import InProcessEngineClient
from paceline_engine.testing.fake_engine import FakeEngine

FILES = Path(page.__file__).parent / "ui"
DATA = (
    *(routes.ADMIN_STATUS, routes.ADMIN_SETTINGS, routes.ADMIN_REQUESTS, routes.ADMIN_STEPS),
    *(routes.ADMIN_TUNING, routes.METRICS),
)


def play(
    tmp_path: Path, go: Callable[[httpx.AsyncClient], Awaitable[None]], config: ServeConfig
) -> None:
    async def run() -> None:
        client = InProcessEngineClient(FakeEngine(tmp_path, EngineSettings().booted()))
        app = create_admin_app(client, config, Drain(shutdown_timeout_s=30.0))
        transport = httpx.ASGITransport(app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await go(http)
        finally:
            await client.close()

    asyncio.run(run())


def with_token(tmp_path: Path) -> ServeConfig:
    file = tmp_path / "token"
    file.write_text("hemlock\n")
    return ServeConfig(model="tiny", admin_token_file=file)


def test_the_page_needs_no_token_and_its_data_do(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient) -> None:
        for path in ("/", "/ui"):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["location"]) == (307, "ui/")
        assert "<title>Paceline</title>" in (await http.get(routes.ADMIN_PAGE)).text
        assert (await http.get("/ui/access.json")).json() == {"needsToken": True}
        for path in DATA:
            assert (await http.get(path)).status_code == 401, path
            accepted = await http.get(path, headers={"Authorization": "Bearer hemlock"})
            assert accepted.status_code == 200, path

    play(tmp_path, go, with_token(tmp_path))


def test_every_file_is_served_with_a_policy_that_names_no_other_host(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient) -> None:
        for file in sorted(FILES.iterdir()):
            answer = await http.get(f"{routes.ADMIN_PAGE}{file.name}")
            assert (answer.status_code, answer.content) == (200, file.read_bytes())
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        for unknown in ("/ui/page.py", "/ui/%2e%2e%2fpage.py", "/ui/%2e%2e/admin.py"):
            assert (await http.get(unknown)).status_code == 404, unknown

    play(tmp_path, go, with_token(tmp_path))


def test_the_files_name_no_address_and_need_no_inline_script() -> None:
    namespaces = {"http://www.w3.org/2000/svg"}
    for file in FILES.iterdir():
        text = file.read_text(encoding="utf-8")
        assert set(re.findall(r"\w+://[^\s\"'`<>]+", text)) <= namespaces, file.name
    html = (FILES / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<script(?![^>]*\ssrc=)", html) is None
    assert re.search(r"\s(on\w+|style)=", html) is None


def test_the_form_knows_every_setting_and_which_are_live(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient) -> None:
        catalog = (await http.get("/ui/settings.json")).json()["settings"]
        shown = (await http.get(routes.ADMIN_SETTINGS)).json()["settings"]
        assert [item["name"] for item in catalog] == list(shown)
        found = {item["name"]: item for item in catalog}
        assert (found["maxNumSeqs"]["kind"], found["maxNumSeqs"]["live"]) == ("integer", True)
        assert found["prefixCaching"]["choices"] == ["true", "false"]
        assert found["watermark"]["kind"] == "string"
        assert not found["blockSize"]["live"]
        assert (await http.get("/ui/access.json")).json() == {"needsToken": False}

    play(tmp_path, go, ServeConfig(model="tiny"))


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_can_neither_read_nor_drain(tmp_path: Path, site: str) -> None:
    async def go(http: httpx.AsyncClient) -> None:
        http.headers["Sec-Fetch-Site"] = site
        for call in (http.post(routes.ADMIN_DRAIN), http.get(routes.ADMIN_SETTINGS)):
            assert (await call).status_code == 403
        assert (await http.get(routes.ADMIN_PAGE)).status_code == 200  # a link to it is no harm
        http.headers["Sec-Fetch-Site"] = "same-origin"
        assert (await http.get(routes.ADMIN_SETTINGS)).status_code == 200

    play(tmp_path, go, ServeConfig(model="tiny"))


@pytest.mark.parametrize("host", ["evil.example:8001", "127.0.0.1.evil.example"])
def test_without_a_token_a_name_that_only_points_here_is_refused(tmp_path: Path, host: str) -> None:
    async def go(http: httpx.AsyncClient) -> None:
        for name, status in ((host, 403), ("127.0.0.1:8001", 200), ("[::1]:8001", 200)):
            answer = await http.get(routes.ADMIN_SETTINGS, headers={"Host": name})
            assert answer.status_code == status, name

    play(tmp_path, go, ServeConfig(model="tiny"))


def test_the_tuners_file_is_shown_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    seen = []

    async def go(http: httpx.AsyncClient) -> None:
        seen.append((await http.get(routes.ADMIN_TUNING)).json())
        file.write_text('{"state": "Watching"}')
        seen.append((await http.get(routes.ADMIN_TUNING)).json())
        file.write_text('{"state"')
        seen.append((await http.get(routes.ADMIN_TUNING)).status_code)

    play(tmp_path, go, ServeConfig(model="tiny", tuning_file=file))
    assert seen == [{"tuning": {}}, {"tuning": {"state": "Watching"}}, 503]

    async def none(http: httpx.AsyncClient) -> None:
        assert (await http.get(routes.ADMIN_TUNING)).json() == {"tuning": None}

    play(tmp_path, none, ServeConfig(model="tiny"))


def test_steps_come_with_now_on_their_own_clock(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient) -> None:
        body = (await http.get(routes.ADMIN_STEPS)).json()
        assert body["steps"] == []
        assert body["nowS"] > 0

    play(tmp_path, go, ServeConfig(model="tiny"))
