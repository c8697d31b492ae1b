"""Every query of every dashboard is answered by a real Prometheus, over a real engine and the
operator's page.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from paceline_crds import dashboards, metrics
from paceline_crds.metrics import METRICS, Kind
from paceline_crds.operator_metrics import OPERATOR_METRICS
from paceline_engine.testing.server_process import ServerProcess, server_process
from paceline_engine.testing.tiny_model import TinyModel
from paceline_operator.shell import metrics as operator_metrics
from paceline_operator.shell.cache import Cache, Key
from paceline_operator.shell.cluster import Cluster
from paceline_operator.shell.leader import Always
from paceline_operator.shell.queue import WorkQueue
from paceline_operator.testing.api import FakeApi
from paceline_operator.testing.prometheus import prometheus, target
from paceline_operator.testing.store import Store

Document = dict[str, Any]
PAGES: dict[str, Document] = {name: json.loads(text) for name, text in dashboards.files().items()}
QUERIES = [
    (f"{name}: {panel['title']}", target["expr"])
    for name, page in PAGES.items()
    for panel in page["panels"]
    for target in panel.get("targets", ())
]
NAME = r"(?:vllm|paceline):\w+|paceline_operator_\w+"
VARIABLES = {
    "$__rate_interval": "5s",
    "$namespace": "models",
    "$deployment": "(chat|other)",
    "$model_name": ".*",
}
# Nothing to see in a small engine with a small model: no speculation, no pressure on memory, nobody
# waits. They are evaluated all the same.
MAY_BE_EMPTY = (
    metrics.SPEC_ACCEPTED,
    metrics.SPECULATION_GOODPUT,
    metrics.WAITING_BY_REASON,
    metrics.PROMPT_HEADS_SHARED,
)


def test_every_metric_that_is_asked_for_exists() -> None:
    series = {
        metric.name + ending
        for metric in (*METRICS.values(), *OPERATOR_METRICS.values())
        for ending in (("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",))
    }
    texts = [expression for _, expression in QUERIES]
    texts += [item.get("definition", "") for page in PAGES.values()
              for item in page["templating"]["list"]]  # fmt: skip
    asked = {name for text in texts for name in re.findall(NAME, text)}
    assert asked
    assert asked <= series


def test_pages_have_their_own_uid_and_panels_do_not_overlap() -> None:
    assert len({page["uid"] for page in PAGES.values()}) == len(PAGES) == 4
    for page in PAGES.values():
        taken = [
            (x, y)
            for panel in page["panels"]
            for place in (panel["gridPos"],)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(taken) == len(set(taken))
        assert all(x < 24 for x, _ in taken)
        ids = [panel["id"] for panel in page["panels"]]
        assert len(ids) == len(set(ids))


def test_each_page_is_a_config_map_that_grafana_finds(
    render: Callable[..., list[Document]],
) -> None:
    documents = render({"dashboards": {"enabled": True, "namespace": "grafana"}})
    found = {
        key: text
        for item in documents
        if item["kind"] == "ConfigMap" and item["metadata"]["namespace"] == "grafana"
        for key, text in item["data"].items()
        if item["metadata"]["labels"]["grafana_dashboard"] == "1"
    }
    assert {key: json.loads(text) for key, text in found.items()} == {
        f"{name}.json": page for name, page in PAGES.items()
    }


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("engine")
    model = TinyModel(hidden_size=16, num_layers=1).write(folder / "model")
    flags = ["--max-model-len=256", "--max-num-seqs=4", "--num-kv-blocks=64", "--dtype=float32"]
    flags += ["--slo-ttft-ms=2000", "--slo-itl-ms=500", "--slo-e2e-ms=10000"]
    with server_process(str(model), folder, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def operator_url() -> Iterator[str]:
    """The operator's page of metrics, over a cache with a model that is down."""
    cluster, cache = Cluster(FakeApi(Store(), lambda: 0.0)), Cache("m")
    cluster.num_writes["apply"] = 1
    conditions = [{"type": "Degraded", "status": "True"}, {"type": "Available", "status": "False"}]
    cache.see(
        "LLMDeployment",
        {
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"},
            "status": {"conditions": conditions},
        },
    )
    counts = operator_metrics.Reconciles()

    async def nothing(_: Key) -> None:
        return None

    queue = WorkQueue(nothing, 1)
    counts.registry.register(operator_metrics.State(cache, queue, cluster, Always()))

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            counts.told(0.01, "unchanged")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(operator_metrics.text(counts.registry))

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.mark.slow
def test_every_query_is_answered_and_shows_something(
    require_program: Callable[[str], str],
    engine: ServerProcess,
    operator_url: str,
    tmp_path: Path,
) -> None:
    program = require_program("prometheus")
    pending = dict.fromkeys(QUERIES, "not asked yet")
    give_up_s = time.monotonic() + 120
    pods = [
        target(engine.url, namespace="models", pod="chat-0", paceline_dev_deployment="chat"),
        target(operator_url, namespace="models", pod="operator-0"),
    ]
    with prometheus(program, {"pods": pods}, tmp_path) as address:
        while not is_answered(pending) and time.monotonic() < give_up_s:
            engine.post(
                "/v1/completions",
                {"model": "model", "prompt": "one two three four " * 9, "max_tokens": 6},
            )
            for case in list(pending):
                pending[case] = ask(address, case[1])
                if pending[case] == "":
                    del pending[case]
            time.sleep(0.2)
    assert is_answered(pending), pending


def is_answered(pending: dict[tuple[str, str], str]) -> bool:
    """Whether what is left has no series, and need not have any."""
    return all(
        why == "no series" and any(name in expression for name in MAY_BE_EMPTY)
        for (_, expression), why in pending.items()
    )


def ask(address: str, expression: str) -> str:
    """What is wrong with the answer to a query; empty if there are series with values."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    try:
        answer = httpx.get(f"{address}/api/v1/query", params={"query": expression}, timeout=30)
    except httpx.TransportError as error:
        return f"no answer: {error}"
    if answer.status_code != httpx.codes.OK:
        return answer.text
    return "" if answer.json()["data"]["result"] else "no series"
