"""How the start of the replicas goes, as lines on a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline_crds.phases import StartupPhase

_PHASES: Mapping[str, str] = {
    StartupPhase.SPAWNING: "starting the engine",
    StartupPhase.IMPORTING: "importing libraries",
    StartupPhase.FETCHING: "fetching the model",
    StartupPhase.CONVERTING: "converting the model",
    StartupPhase.LOADING: "loading weights",
    StartupPhase.MEASURING: "measuring kernels",
    StartupPhase.PLANNING: "planning memory",
    StartupPhase.READY: "ready",
    StartupPhase.FAILED: "failed",
}


def line(startups: Sequence[Mapping[str, Any] | None]) -> str:
    """One line for all replicas, from the bodies of their `/health/startup`."""
    parts = [_one(startup) for startup in startups]
    if len(parts) == 1:
        return parts[0]
    return "; ".join(f"replica {index}: {part}" for index, part in enumerate(parts))


def _one(startup: Mapping[str, Any] | None) -> str:
    if startup is None:
        return "starting a process"
    phase = str(startup.get("phase", ""))
    text = _PHASES.get(phase, phase)
    share = float(startup.get("progress") or 0.0)
    return (
        text
        if phase in {StartupPhase.READY, StartupPhase.FAILED} or not share
        else f"{text} {share:.0%}"
    )


class Progress:
    """Writes a line when it changes; on a terminal it replaces the one before."""

    def __init__(self, write: Any, *, is_terminal: bool) -> None:
        self._write = write
        self._is_terminal = is_terminal
        self._last = ""

    def show(self, text: str) -> None:
        """Show this line if it is new. A file or a pipe gets one line for each phase."""
        key = text if self._is_terminal else text.rstrip("0123456789%").rstrip()
        if key == self._last:
            return
        self._last = key
        self._write(f"\r\x1b[2K{text}" if self._is_terminal else f"{key}\n")

    def end(self) -> None:
        """Leave the last line as it stands."""
        if self._is_terminal and self._last:
            self._write("\n")
        self._last = ""
