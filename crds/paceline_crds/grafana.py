"""The shape of a Grafana dashboard: rows of panels, and the variables above them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_COLUMNS = 24
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NAMESPACE_LABEL = "namespace"
DEPLOYMENT_LABEL = "paceline_dev_deployment"
"""What Prometheus makes of the pods' label paceline.dev/deployment."""
SELECTOR = (
    f'{NAMESPACE_LABEL}=~"$namespace",{DEPLOYMENT_LABEL}=~"$deployment",model_name=~"$model_name"'
)
"""Label matchers of every query about engines, from the variables above the panels."""
OPERATOR_SELECTOR = f'{NAMESPACE_LABEL}=~"$namespace"'
"""The same for the operator, which knows no model."""
_OF_ENGINES = (
    ("namespace", NAMESPACE_LABEL),
    ("deployment", DEPLOYMENT_LABEL),
    ("model_name", "model_name"),
)
OF_OPERATOR = (("namespace", NAMESPACE_LABEL),)


@dataclass(frozen=True, slots=True)
class Query:
    """An expression in PromQL and how its series are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph.

    Attributes:
        unit: Grafana's name of it, such as s, percentunit, reqps, short.
        is_stacked: the series add up to something.
        help: what to read from it; shown at the title.
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    is_stacked: bool = False
    help: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side below a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page.

    Attributes:
        uid: stays the same for ever, since links name it.
        anchor: a metric whose series give the variables their values.
        variables: names and labels of what can be chosen, each among the choices before it.
    """

    uid: str
    title: str
    description: str
    anchor: str
    rows: tuple[Row, ...]
    variables: tuple[tuple[str, str], ...] = _OF_ENGINES

    def as_json(self) -> str:
        """The page as Grafana imports it."""
        return json.dumps(_page(self), indent=2, ensure_ascii=False) + "\n"


def _page(board: Dashboard) -> dict[str, Any]:
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["paceline", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables(board)},
        "panels": _panels(board.rows),
    }


def _variables(board: Dashboard) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource"}
    made = [{**source, "query": "prometheus", "current": {}, "hide": 0, "refresh": 1}]
    chosen: list[str] = []
    for name, label in board.variables:
        among = f"{{{','.join(chosen)}}}" if chosen else ""
        made.append(_values_of(name, f"label_values({board.anchor}{among}, {label})"))
        chosen.append(f'{label}=~"${name}"')
    return made


def _values_of(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
        "hide": 0,
    }


def _panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
        made.append({"id": len(made) + 1, "type": "row", "title": row.title, "gridPos": place,
                     "collapsed": False, "panels": []})  # fmt: skip
        width = _COLUMNS // len(row.panels)
        for number, panel in enumerate(row.panels):
            place = {"h": _HEIGHT, "w": width, "x": number * width, "y": top + 1}
            made.append({"id": len(made) + 1, **_graph(panel), "gridPos": place})
        top += 1 + _HEIGHT
    return made


def _graph(panel: Panel) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.is_stacked else "none", "group": "A"}
    custom = {"fillOpacity": 20 if panel.is_stacked else 5, "lineWidth": 1, "stacking": stacking}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "range": True,
            }
            for number, query in enumerate(panel.queries)
        ],
    }
