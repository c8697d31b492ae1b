"""An `EngineClient` whose loop runs inside the caller's event loop, for tests.

It runs the step loop that serves; only the transport differs. A step blocks the event loop, so
this is for small runners.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from paceline_crds.phases import StartupPhase
from paceline_engine.serve.step.assembly import LoadedRunner, assemble, engine_info
from paceline_engine.serve.step.engine_client import Heartbeat, Startup
from paceline_engine.serve.step.loop import DeviceBroken
from paceline_engine.serve.step.message_client import MessageClient
from paceline_engine.serve.step.messages import ToEngine


class InProcessEngineClient(MessageClient):
    """A step loop as a task of the caller's event loop.

    The task starts with the first message; `close` ends it. Every part of it sees `clock`.
    """

    def __init__(
        self,
        runner: LoadedRunner,
        *,
        model: str = "test-model",
        model_dir: Path = Path(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self._take, clock=clock)
        self.info = engine_info(runner, model=model, model_dir=model_dir, revision="")
        self.startup = Startup(phase=StartupPhase.READY, progress=1.0)
        self._inbox: deque[ToEngine] = deque()
        self._has_mail = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = assemble(runner, clock=clock, publish=self.receive)

    @property
    def heartbeat(self) -> Heartbeat:
        """Progress of the loop."""
        return self.watched(self._loop.heartbeat)

    async def close(self) -> None:
        """End the loop; open streams end with `EngineGone`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._loop.close()
        self.lose("Closed", "the engine was closed")

    def _take(self, message: ToEngine) -> None:
        self._inbox.append(message)
        self._has_mail.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while not self._loop.is_stopping:
                self._has_mail.clear()
                while self._inbox:
                    self._loop.handle(self._inbox.popleft())
                if self._loop.turn():
                    await asyncio.sleep(0)
                else:
                    await self._wait(self._loop.wait_s())
        except DeviceBroken as error:
            self.lose("DeviceBroken", str(error))
        except Exception as error:
            self.lose("Internal", f"{type(error).__name__}: {error}")
            raise

    async def _wait(self, timeout_s: float | None) -> None:
        try:
            await asyncio.wait_for(self._has_mail.wait(), timeout_s)
        except TimeoutError:
            return
