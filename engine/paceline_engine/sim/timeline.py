"""The course of a run, sampled: what a plot shows. Memory is bounded however long the run is."""

from dataclasses import dataclass

_MAX_POINTS = 2048


@dataclass(frozen=True, slots=True)
class Point:
    """One moment after a step. Shares are in [0, 1]; `step_ms` is the step's own time."""

    at_s: float
    num_running: int
    num_waiting: int
    kv_share: float
    step_ms: float
    num_preemptions: int


class Timeline:
    """Keeps every n-th step; n doubles whenever there are too many. Mutable."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._stride = 1
        self._seen = 0

    @property
    def is_due(self) -> bool:
        """Count a step; whether it is one to keep."""
        self._seen += 1
        return self._seen % self._stride == 0

    def add(self, point: Point) -> None:
        """Keep a step that was due."""
        self.points.append(point)
        if len(self.points) >= _MAX_POINTS:
            self.points = self.points[1::2]
            self._stride *= 2
