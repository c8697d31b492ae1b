"""The replicas behind the proxy: which of them may be sent to, and which has least to do."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_crds import routes
from paceline_engine.serve.http_stream import AnswerCut, ResponseStream

_PROBE_TIMEOUT_S = 2.0


@dataclass(slots=True, kw_only=True)
class Replica:
    """One engine on loopback. Mutable: owned by `Replicas`.

    Attributes:
        is_ready: what its readiness said last; False while it loads, drains, or is gone.
        num_outstanding: requests sent to it whose answer has not ended.
        num_unanswered: probes in a row that were taken and not answered in time. A connection
            that is refused is none of them: nobody listens yet, or any more.
        last_turn: grows with every request given to any replica; breaks ties.
    """

    index: int
    host: str
    port: int
    is_ready: bool = False
    num_outstanding: int = 0
    num_unanswered: int = 0
    last_turn: int = 0

    @property
    def url(self) -> str:
        """Base URL without a path."""
        return f"http://{self.host}:{self.port}"


class Replicas:
    """All replicas of one deployment.

    Attributes:
        all: in order of index.
        is_draining: no request is taken any more.
    """

    def __init__(
        self, replicas: Sequence[Replica], *, probe_timeout_s: float = _PROBE_TIMEOUT_S
    ) -> None:
        self.all = tuple(replicas)
        self._probe_timeout_s = probe_timeout_s
        self.is_draining = False
        self._turn = 0

    def take(self, without: Sequence[Replica] = ()) -> Replica | None:
        """The ready replica with the fewest outstanding requests; give it back with `release`.

        Of several with equally few, the one whose turn is longest ago. None if none is ready.
        """
        able = [r for r in self.all if r.is_ready and r not in without]
        if not able:
            return None
        replica = min(able, key=lambda r: (r.num_outstanding, r.last_turn))
        self._turn += 1
        replica.last_turn = self._turn
        replica.num_outstanding += 1
        return replica

    def release(self, replica: Replica) -> None:
        """The answer of a request taken with `take` has ended."""
        replica.num_outstanding -= 1

    async def probe(self) -> None:
        """Ask every replica once whether it is ready."""
        await asyncio.gather(*(self._probe_one(replica) for replica in self.all))

    async def _probe_one(self, replica: Replica) -> None:
        replica.is_ready = await self._answers(replica)

    async def _answers(self, replica: Replica) -> bool:
        """Whether it says that it is ready."""
        try:
            status, _ = await get(replica.url + routes.HEALTH_READY, self._probe_timeout_s)
        except TimeoutError:
            replica.num_unanswered += 1
            return False
        except (OSError, AnswerCut):
            status = 0
        replica.num_unanswered = 0
        return status == 200


async def get(
    url: str, timeout_s: float = _PROBE_TIMEOUT_S, *, authorization: bytes = b""
) -> tuple[int, bytes]:
    """Status and body of a GET; `authorization` is sent as that header if given.

    Raises:
        OSError: no connection, or no whole answer in time.
        AnswerCut: the connection ended before the answer did.
    """
    async with asyncio.timeout(timeout_s):
        headers = [(b"authorization", authorization)] if authorization else []
        stream = await ResponseStream.open("GET", url, headers=headers)
        try:
            await stream.head()
            return stream.status, await stream.body()
        finally:
            stream.abort()
