"""Service-level targets and derived settings change live, go back to their default, and are read
back where dashboards look."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.serve.admin.admin import create_admin_app
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.serve.step.in_process import InProcessEngineClient
from paceline_engine.testing.fake_engine import FakeEngine

TARGETS = {"sloTtftMs": "ttft", "sloItlMs": "itl", "sloE2eMs": "e2e"}


class Ports:
    """The admin and the public port of one engine."""

    def __init__(self, client: InProcessEngineClient) -> None:
        config, drain = ServeConfig(model="tiny"), Drain(shutdown_timeout_s=1.0)
        self._admin = create_admin_app(client, config, drain)
        self._public = create_public_app(client, config, drain)

    async def patch(self, **changes: Any) -> dict[str, Any]:
        async with self._open(self._admin) as http:
            answer = await http.patch("/v1/paceline/settings", json=changes)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def settings(self) -> dict[str, Any]:
        async with self._open(self._admin) as http:
            found: dict[str, Any] = (await http.get("/v1/paceline/settings")).json()
        return found

    async def metrics(self) -> dict[str, float]:
        async with self._open(self._public) as http:
            text = (await http.get("/metrics")).text
        lines = (line for line in text.splitlines() if not line.startswith("#"))
        pairs = (line.rpartition(" ") for line in lines)
        common = 'model_name="tiny",engine="0"'
        return {
            name.replace(common + ",", "").replace("{" + common + "}", ""): float(value)
            for name, _, value in pairs
        }

    async def until(self, sample: str, value: float | None) -> dict[str, float]:
        """The page once it shows this; a snapshot may be a tenth of a second old."""
        while (page := await self.metrics()).get(sample) != value:  # noqa: ASYNC110 - no such event
            await asyncio.sleep(0.01)
        return page

    def _open(self, app: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


def play(folder: Path, go: Callable[[Ports], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        client = InProcessEngineClient(FakeEngine(folder, EngineSettings(**settings).booted()))
        try:
            await asyncio.wait_for(go(Ports(client)), 120)
        finally:
            await client.close()

    asyncio.run(run())


@pytest.mark.slow
def test_targets_change_live_and_go_away_with_null(tmp_path: Path) -> None:
    async def go(ports: Ports) -> None:
        for number, (name, signal) in enumerate(TARGETS.items(), 1):
            change = await ports.patch(**{name: 50})
            assert (change["old"], change["new"]) == ({name: None}, {name: 50})
            page = await ports.until(f'paceline:setting{{name="{name}"}}', 50)
            assert page[f'paceline:slo_target_seconds{{signal="{signal}"}}'] == 0.05
            assert page["paceline:slo_revision"] == number
            assert page["paceline:settings_generation"] == number
        change = await ports.patch(**dict.fromkeys(TARGETS))
        assert change["new"] == dict.fromkeys(TARGETS)
        page = await ports.until('paceline:setting{name="sloItlMs"}', None)
        assert not [name for name in page if name.startswith("paceline:slo_target_seconds")]
        assert page["paceline:slo_revision"] == page["paceline:settings_generation"] == 4

    play(tmp_path, go)


@pytest.mark.slow
def test_null_gives_a_derived_setting_back_to_its_default(tmp_path: Path) -> None:
    async def go(ports: Ports) -> None:
        assert (await ports.settings())["settings"]["longPrefillTokens"] == 7
        await ports.patch(longPrefillTokens=None)
        assert (await ports.settings())["settings"]["longPrefillTokens"] is None
        await ports.until('paceline:setting{name="longPrefillTokens"}', None)
        # Already absent, so nothing changes; a value would be refused in this release.
        change = await ports.patch(interTokenTargetMs=None)
        assert (change["generation"], change["new"]) == (1, {})

    play(tmp_path, go, long_prefill_tokens=7)


@pytest.mark.slow
def test_an_empty_patch_changes_nothing(tmp_path: Path) -> None:
    async def go(ports: Ports) -> None:
        before = await ports.settings()
        change = await ports.patch()
        assert (change["generation"], change["old"], change["new"]) == (0, {}, {})
        after = await ports.settings()
        # A writer that names no revision takes the next one, whatever it writes.
        assert after == before | {"revision": change["revision"]}
        again = await ports.patch(revision=change["revision"])
        assert again == change

    play(tmp_path, go)
