"""The tuner of `paceline run`: engines' own pages and admin ports instead of Prometheus and pods.

What annotations are in a cluster are files of the run's folder: `freeze`, `approve`, `reject`. The
state is written to `tuning.json`, as `status.tuning` has it, before an engine is told anything.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from paceline.supervisor import Member, RunFiles, Supervisor
from paceline.tuner import pages
from paceline.tuner.session import Controls, Order, Reading, Session
from paceline_crds import routes
from paceline_crds.spec import LLMDeploymentSpec
from paceline_crds.spec_tuning import TuningMode
from paceline_operator.decide.tuning import codec, readings, windows
from paceline_operator.decide.tuning.observation import Fleet, Note
from paceline_operator.decide.tuning.readings import Scrape
from paceline_operator.decide.tuning.signals import Sample
from paceline_operator.decide.tuning.state import Phase

_BUSY_S = 1.0
"""How soon to look again while engines take a change up or give it back."""
_BUSY = frozenset({Phase.APPLYING.value, Phase.ROLLING_BACK.value})
_TIMEOUT_S = 5.0


class LocalTuner:
    """Mutable; lives in the event loop of `paceline run`.

    Args:
        spec: the manifest's.
        supervisor: whose replicas are tuned.
        files: the run's folder and admin token.
        report: a line for the person.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        spec: LLMDeploymentSpec,
        supervisor: Supervisor,
        files: RunFiles,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.session = Session(spec)
        self._supervisor = supervisor
        self._files = files
        self._report = report
        self._clock = clock
        self._scrapes: list[Scrape] = []
        self._ready_since: dict[str, tuple[int, float]] = {}
        self._told: set[str] = set()
        # Loopback only: no proxy of the person's environment stands before it.
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)

    async def run(self) -> None:
        """Tune until cancelled, or until the replicas are drained; a failure is told."""
        try:
            await self._run()
        except Exception as error:
            self._report(f"tuner: it ended ({error!r}); settings stay as they are")
        finally:
            await self._http.aclose()

    def farewell(self) -> list[str]:
        """What the tuner has found ends with the run: the lines that keep it."""
        kept = self.session.kept()
        if not kept:
            return []
        return [
            "what the tuner has set ends with this run; to keep it, write into the manifest:",
            *(f"  {place}: {value}" for place, value in kept),
        ]

    async def _run(self) -> None:
        rules = self.session.policy
        if rules.mode is TuningMode.OFF or self._supervisor.is_stopping:
            return
        self._report(
            f"tuner: {rules.mode}, every {rules.window_s} s from the engines' own metrics; "
            f"`touch {self._files.folder}/freeze` holds it, its state is in "
            f"{self._files.tuning_file}"
        )
        next_scrape = 0.0
        while not self._supervisor.is_stopping:
            now = self._clock()
            self._note_readiness(now)
            if now >= next_scrape:
                await self._scrape()
                next_scrape = (now // rules.scrape_s + 1) * rules.scrape_s
            await self._turn()
            pause = next_scrape - self._clock()
            if self.session.state.mood in _BUSY:
                pause = min(pause, _BUSY_S)
            await asyncio.sleep(max(0.05, pause))

    # -- one turn ----------------------------------------------------------------------------

    async def _turn(self) -> None:
        found = await asyncio.gather(*(self._read(member) for member in self._ready()))
        said = [item for item in found if item is not None]
        now = self._clock()
        notes = self.session.turn(said, self._samples(now), self._fleet(), now, self._controls())
        self._remember()
        for note in notes:
            self._report(f"tuner: {self._line(note)}")
        await asyncio.gather(*(self._obey(order) for order in self.session.orders(said)))

    def _samples(self, now: float) -> list[Sample]:
        rules = self.session.policy
        ready = [(name, at) for name, (_, at) in self._ready_since.items()]
        made = []
        for window in self.session.due(now):
            counted = windows.pods_of(window, ready, rules.warm_up)
            made.append(readings.measured(self._scrapes, window, counted))
        self._scrapes = readings.forget(self._scrapes, self.session.state.seen_until)
        return made

    def _fleet(self) -> Fleet:
        members = self._supervisor.members
        return Fleet(
            replicas=len(members),
            num_pods=len(members),
            num_ready=len(self._ready()),
            crashes=sum(member.num_restarts for member in members),
        )

    def _ready(self) -> list[Member]:
        return [member for member in self._supervisor.members if member.replica.is_ready]

    def _note_readiness(self, now: float) -> None:
        """Since when each replica is ready; a process that began again is another one."""
        since = {}
        for member in self._ready():
            name, turn = _name(member), member.num_restarts
            known = self._ready_since.get(name)
            since[name] = known if known is not None and known[0] == turn else (turn, now)
        self._ready_since = since

    # -- files -------------------------------------------------------------------------------

    def _controls(self) -> Controls:
        folder = self._files.folder
        return Controls(
            is_frozen=(folder / "freeze").exists(),
            approve=_first_word(folder / "approve"),
            reject=_first_word(folder / "reject"),
        )

    def _remember(self) -> None:
        file = self._files.tuning_file
        new = file.with_suffix(".new")
        new.write_text(json.dumps(codec.encode(self.session.state), indent=1), encoding="utf-8")
        new.replace(file)

    def _line(self, note: Note) -> str:
        text = f"{note.reason}: {note.message}"
        if note.asks_for:
            folder = self._files.folder
            text += f"; to apply it: echo {note.asks_for} > {folder}/approve (or reject)"
        return text

    def _say_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._report(f"tuner: {text}")

    # -- engines -----------------------------------------------------------------------------

    async def _scrape(self) -> None:
        await asyncio.gather(*(self._scrape_one(member) for member in self._ready()))

    async def _scrape_one(self, member: Member) -> None:
        """A page that does not come is a scrape less, which the window then shows."""
        try:
            answer = await self._http.get(member.replica.url + routes.METRICS)
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                self._say_once("the metrics need an API key, so nothing can be measured")
            if answer.status_code == httpx.codes.OK:
                page = pages.of_text(answer.text)
                self._scrapes.append(Scrape(engine=_name(member), at=self._clock(), page=page))
        except (httpx.HTTPError, ValueError):
            return

    async def _read(self, member: Member) -> Reading | None:
        try:
            found = await self._http.get(self._admin(member), headers=self._headers())
            answer: Mapping[str, Any] = found.json() if found.is_success else {}
        except (httpx.HTTPError, ValueError):
            return None
        if "settings" not in answer:
            return None
        return Reading(
            engine=_name(member), revision=answer["revision"], settings=answer["settings"]
        )

    async def _obey(self, order: Order) -> None:
        """Tell one engine; whether it took it is read back in the next turn."""
        member = next(item for item in self._supervisor.members if _name(item) == order.engine)
        body = {**order.changes, "revision": order.revision}
        try:
            answer = await self._http.patch(self._admin(member), json=body, headers=self._headers())
        except httpx.HTTPError as error:
            self._say_once(f"replica {order.engine} did not answer a change: {error!r}")
            return
        if not answer.is_success:
            told = answer.text[:500]
            self._say_once(f"replica {order.engine} refused a change: {told}")

    @staticmethod
    def _admin(member: Member) -> str:
        return f"http://127.0.0.1:{member.admin_port}{routes.ADMIN_SETTINGS}"

    def _headers(self) -> dict[str, str]:
        token = self._files.admin_token_file.read_text(encoding="utf-8").strip()
        return {"Authorization": f"Bearer {token}"}


def _name(member: Member) -> str:
    return str(member.replica.index)


def _first_word(file: Path) -> str:
    try:
        return (file.read_text(encoding="utf-8").split() or [""])[0]
    except (OSError, UnicodeDecodeError):
        return ""
