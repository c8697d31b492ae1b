"""Prometheus through its HTTP API: questions in, samples out. The only place that talks to it."""

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from math import nan
from pathlib import Path
from typing import Any

import aiohttp

from paceline_operator.decide.observed import Measured
from paceline_operator.decide.reasons import Reason
from paceline_operator.decide.tuning.asking import Question
from paceline_operator.decide.tuning.queries import LABEL
from paceline_operator.decide.tuning.signals import Sample, Signal
from paceline_operator.resources import objects
from paceline_operator.shell import answers
from paceline_operator.shell.errors import PrometheusFailed

TIMEOUT_S = 10.0
AWAY_S = 15.0
"""One that did not answer is left alone for so long: looks go on without measurements meanwhile."""
MOST_BYTES = 1024 * 1024
_MOST = 1e15
_KNOWN = frozenset(signal.value for signal in Signal)
_UNAVAILABLE = 503


class Prometheus:
    """A client of one Prometheus. Mutable: keeps connections."""

    def __init__(
        self,
        url: str,
        *,
        bearer_token_file: str = "",
        ca_file: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url.rstrip("/")
        self._token_file = bearer_token_file
        self._ca_file = ca_file
        self._clock = clock
        self._away_until, self._away = float("-inf"), ""
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End its connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def measure(self, questions: Iterable[Question]) -> Measured:
        """A sample for each question, oldest first; the first failure ends it and is told."""
        samples: list[Sample] = []
        try:
            for question in questions:
                if not question.pods:
                    samples.append(question.nothing())
                    continue
                values = await self.values(question.query, question.at)
                samples.append(Sample(window=question.window, pods=question.pods, values=values))
        except PrometheusFailed as failed:
            return Measured(samples=tuple(samples), lack=failed.reason, text=str(failed))
        return Measured(samples=tuple(samples), lack="", text="")

    async def values(self, query: str, at: float) -> dict[Signal, float]:
        """The signals of a query, evaluated at a time.

        Raises:
            PrometheusFailed: no answer, or a refusal.
        """
        body = await self._post({"query": query, "time": f"{at:.3f}"})
        found = {}
        for item in objects.items(body, "data", "result"):
            name = objects.text(item, "metric", LABEL)
            pair = item.get("value")
            if name in _KNOWN and isinstance(pair, list) and len(pair) == 2:
                found[Signal(name)] = self._number(name, pair[1])
        return found

    def _number(self, name: str, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            told = f"{self._url}: the value of {name} is no number: {str(value)[:100]!r}"
            raise PrometheusFailed(Reason.QUERY_FAILED, told) from error
        # Nothing here is ever so large; status keeps no more digits.
        return number if abs(number) <= _MOST else nan

    async def _post(self, form: Mapping[str, str]) -> Mapping[str, Any]:
        if self._clock() < self._away_until:
            raise PrometheusFailed(Reason.PROMETHEUS_UNREACHABLE, self._away)
        try:
            if self._http is None:
                timeout = aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=3.0)
                connector = aiohttp.TCPConnector(ssl=self._trust())
                self._http = answers.session(timeout, connector)
            url = f"{self._url}/api/v1/query"
            headers = self._headers()
            async with self._http.post(
                url, data=form, headers=headers, allow_redirects=False
            ) as answer:
                body = await answers.json_of(answer, MOST_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            told = (str(error) or type(error).__name__)[:500]
            self._away_until, self._away = self._clock() + AWAY_S, f"{self._url}: {told}"
            raise PrometheusFailed(Reason.PROMETHEUS_UNREACHABLE, self._away) from error
        if not isinstance(body, Mapping) or body.get("status") != "success":
            told = objects.text(body, "error") or f"HTTP {answer.status}"
            is_away = answer.status >= _UNAVAILABLE
            reason = Reason.PROMETHEUS_UNREACHABLE if is_away else Reason.QUERY_FAILED
            raise PrometheusFailed(reason, f"{self._url}: {told[:500]}")
        return body

    def _headers(self) -> dict[str, str]:
        """The bearer token, read each time: projected tokens are replaced while a pod runs."""
        if not self._token_file:
            return {}
        token = Path(self._token_file).read_text(encoding="utf-8").strip()
        return {"Authorization": f"Bearer {token}"}

    def _trust(self) -> ssl.SSLContext | bool:
        return ssl.create_default_context(cafile=self._ca_file) if self._ca_file else True
