"""Questions to a Prometheus by a command: its HTTP API, and errors that a person can act on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from paceline.errors import EXIT_FAILED, CommandError

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of an instant query.

    Attributes:
        labels: without the metric's name.
    """

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One series of a range query.

    Attributes:
        labels: without the metric's name.
        points: time (seconds since the epoch) and value, oldest first.
    """

    labels: Mapping[str, str]
    points: tuple[tuple[int, float], ...]


class Prometheus:
    """A client. Mutable: keeps a connection; close it.

    Args:
        url: of the server, without `/api`.
        token: a bearer token, empty for none.
        ca_file: authority of its certificate, empty for the system's.
    """

    def __init__(self, url: str, *, token: str = "", ca_file: str = "") -> None:
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(timeout=_TIMEOUT_S, headers=headers, verify=ca_file or True)

    def close(self) -> None:
        """End its connection."""
        self._http.close()

    def ask(self, query: str, at: float) -> list[Series]:
        """Evaluate a query at a time (seconds since the epoch).

        Raises:
            CommandError: nobody answers there, it is no Prometheus, or it refuses the query.
        """
        found = self._asked("query", {"query": query, "time": f"{at:.3f}"})
        return [Series(labels=item["metric"], value=float(item["value"][1])) for item in found]

    def ask_range(self, query: str, start: int, end: int, step_s: int) -> list[Course]:
        """Evaluate a query at each step from a time to another (seconds since the epoch).

        Raises:
            CommandError: as `ask`.
        """
        form = {"query": query, "start": f"{start}", "end": f"{end}", "step": f"{step_s}"}
        return [
            Course(
                labels=item["metric"],
                points=tuple((round(float(at)), float(value)) for at, value in item["values"]),
            )
            for item in self._asked("query_range", form)
        ]

    def _asked(self, what: str, form: Mapping[str, str]) -> list[Any]:
        try:
            answer = self._http.post(f"{self._url}/api/v1/{what}", data=form)
            body: Any = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandError(
                f"Prometheus at {self._url} does not answer: {error or type(error).__name__}; "
                "check --prometheus, and that this machine reaches it (kubectl port-forward)",
                EXIT_FAILED,
            ) from error
        except ValueError as error:
            raise CommandError(
                f"{self._url} is no Prometheus: its answer to /api/v1/{what} has status "
                f"{answer.status_code} and is no JSON; check --prometheus",
                EXIT_FAILED,
            ) from error
        if not isinstance(body, dict) or body.get("status") != "success":
            told = body.get("error", body) if isinstance(body, dict) else body
            raise CommandError(
                f"Prometheus at {self._url} refuses the question (status {answer.status_code}): "
                f"{str(told)[:500]}",
                EXIT_FAILED,
            )
        found: list[Any] = body["data"]["result"]
        return found
