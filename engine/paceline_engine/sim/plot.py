"""A run's course as a picture: one static SVG, panels below each other, a line per run."""

from collections.abc import Callable, Sequence
from html import escape

from paceline_engine.sim.timeline import Point

_WIDTH, _PANEL, _LEFT, _TOP, _GAP = 900, 130, 70, 40, 34
_COLOURS = ("#1f6feb", "#d1570a", "#2da44e", "#8250df")
_PANELS: tuple[tuple[str, Callable[[Point], float]], ...] = (
    ("running requests", lambda point: point.num_running),
    ("waiting requests", lambda point: point.num_waiting),
    ("KV blocks in use, share", lambda point: point.kv_share),
    ("step, ms", lambda point: point.step_ms),
    ("preemptions so far", lambda point: point.num_preemptions),
)


def svg(runs: Sequence[tuple[str, Sequence[Point]]]) -> str:
    """The picture of runs by name; a run without points has no line."""
    points = [point for _, points in runs for point in points]
    start_s = min((point.at_s for point in points), default=0.0)
    end_s = max((point.at_s for point in points), default=1.0)
    height = _TOP + len(_PANELS) * (_PANEL + _GAP) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for index, (name, _) in enumerate(runs):
        x = _LEFT + 200 * index
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="22">{escape(name)}</text>')
    for number, (title, value) in enumerate(_PANELS):
        top = _TOP + number * (_PANEL + _GAP)
        parts += _panel(title, value, runs, (start_s, end_s), top)
    return "\n".join([*parts, "</svg>\n"])


def _panel(
    title: str,
    value: Callable[[Point], float],
    runs: Sequence[tuple[str, Sequence[Point]]],
    span_s: tuple[float, float],
    top: float,
) -> list[str]:
    most = max((value(point) for _, points in runs for point in points), default=0.0) or 1.0
    bottom, right = top + _PANEL, _WIDTH - 20
    start_s, end_s = span_s
    scale_x = (right - _LEFT) / max(end_s - start_s, 1e-9)
    parts = [
        f'<text x="{_LEFT}" y="{top + 12}" font-weight="bold">{escape(title)}</text>',
        f'<path d="M{_LEFT} {top + 18}V{bottom}H{right}" fill="none" stroke="#8c959f"/>',
        f'<text x="{_LEFT - 6}" y="{top + 24}" text-anchor="end">{most:.4g}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{_LEFT}" y="{bottom + 14}">{start_s:.4g} s</text>',
        f'<text x="{right}" y="{bottom + 14}" text-anchor="end">{end_s:.4g} s</text>',
    ]
    for index, (_, points) in enumerate(runs):
        if not points:
            continue
        line = " ".join(
            f"{_LEFT + (point.at_s - start_s) * scale_x:.1f},"
            f"{bottom - value(point) / most * (_PANEL - 20):.1f}"
            for point in points
        )
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.2"/>'
        )
    return parts
