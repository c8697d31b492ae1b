import asyncio
from pathlib import Path

from paceline_crds.settings import EngineSettings
from paceline_engine.serve.openai.launch import QueueTimeout
from paceline_engine.serve.step.engine_client import EngineGone, SettingsState
from paceline_engine.testing.scripted_engine import ScriptedEngine, saying


def engine_of(folder: Path, timeout_s: int) -> ScriptedEngine:
    engine = ScriptedEngine(folder, saying([80]))
    engine.current = EngineSettings(queue_timeout_s=timeout_s)
    return engine


def test_the_deadline_is_the_arrival_and_the_live_timeout(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = engine_of(tmp_path, 60)
        now = 0.0
        timeout = QueueTimeout(engine, clock=lambda: now)
        assert await timeout.deadline_s(100.0) == 160.0
        engine.current = EngineSettings(queue_timeout_s=5)
        assert await timeout.deadline_s(100.0) == 160.0
        # The next request does not wait for the new value either; the one after it has it.
        now = 10.0
        assert await timeout.deadline_s(100.0) == 160.0
        await asyncio.sleep(0)
        assert await timeout.deadline_s(100.0) == 105.0

    asyncio.run(scenario())


def test_a_timeout_of_zero_is_no_deadline(tmp_path: Path) -> None:
    async def scenario() -> None:
        assert await QueueTimeout(engine_of(tmp_path, 0)).deadline_s(100.0) is None

    asyncio.run(scenario())


def test_an_engine_that_is_gone_leaves_the_known_timeout(tmp_path: Path) -> None:
    class Dying(ScriptedEngine):
        num_calls = 0

        async def settings(self) -> SettingsState:
            self.num_calls += 1
            if self.num_calls > 1:
                raise EngineGone("it ended")
            return await super().settings()

    async def scenario() -> None:
        now = 0.0
        engine = Dying(tmp_path, saying([80]))
        timeout = QueueTimeout(engine, clock=lambda: now)
        first = await timeout.deadline_s(1.0)
        now = 10.0
        assert await timeout.deadline_s(1.0) == first
        await asyncio.sleep(0)
        assert await timeout.deadline_s(1.0) == first
        assert engine.num_calls == 2

    asyncio.run(scenario())
