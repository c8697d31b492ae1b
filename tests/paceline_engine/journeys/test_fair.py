"""Policy Fair over HTTP: tenants by their keys, shares that hold, weights that change live."""

import hashlib
import json
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from paceline_crds import metrics
from paceline_engine.testing.metrics_page import MetricsPage
from paceline_engine.testing.server_process import ServerProcess, server_process
from paceline_engine.testing.tiny_model import write_tiny_model

pytestmark = pytest.mark.full  # two minutes

TENANTS = ("gold", "free", "light")
NUM_CLIENTS = 10
MAX_TOKENS = 40
WEIGHTS = [{"name": "gold", "weight": 3}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    keys = tmp_path_factory.mktemp("keys") / "keys"
    lines = [f"{name}:{hashlib.sha256(key_of(name).encode()).hexdigest()}\n" for name in TENANTS]
    keys.write_text("".join(lines))
    flags = ("--dtype", "float32", "--num-kv-blocks", "900", "--max-num-seqs", "4")
    flags += ("--scheduling-policy", "Fair", "--tenants", json.dumps(WEIGHTS))
    flags += ("--api-key-file", str(keys))
    with server_process(str(model), tmp_path_factory.mktemp("server"), *flags) as running:
        yield running


def key_of(tenant: str) -> str:
    return f"sk-{tenant}"


class Clients:
    """Clients of two tenants that send one request after the other, and how long they waited."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._is_over = threading.Event()
        self.ttft_s: dict[str, list[float]] = {tenant: [] for tenant in TENANTS}

    def ask(self, tenant: str, number: int) -> None:
        body = {
            "model": self._server.model,
            "prompt": f"{number} people of {tenant} cross the river and the bridge",
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "stream": True,
            "temperature": 0,
        }
        headers = {"Authorization": f"Bearer {key_of(tenant)}"}
        sent_s, url = time.monotonic(), f"{self._server.url}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=300) as answer:
            assert answer.status_code == 200, answer.read()
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            next(lines)
            self.ttft_s[tenant].append(time.monotonic() - sent_s)
            for _ in lines:
                pass

    def ask_on(self, tenant: str, number: int) -> None:
        while not self._is_over.is_set():
            self.ask(tenant, number)

    def stop(self) -> None:
        self._is_over.set()


def served(server: ServerProcess, tenant: str) -> float:
    page = MetricsPage(server.get("/metrics").text)
    return page.total(metrics.SERVED_TOKENS, tenant=tenant)


def ratio_while_serving(server: ServerProcess, num_tokens: int) -> float:
    """Gold's tokens over free's, while free is given so many."""
    before = {tenant: served(server, tenant) for tenant in ("gold", "free")}
    give_up_s = time.monotonic() + 240
    while (free := served(server, "free") - before["free"]) < num_tokens:
        assert time.monotonic() < give_up_s, "the server stands still"
        time.sleep(0.05)
    return (served(server, "gold") - before["gold"]) / free


def test_tenants_get_their_parts_and_a_light_one_does_not_wait_behind_them(
    server: ServerProcess,
) -> None:
    clients = Clients(server)
    with ThreadPoolExecutor(2 * NUM_CLIENTS) as pool:
        running = [
            pool.submit(clients.ask_on, tenant, number)
            for number in range(NUM_CLIENTS)
            for tenant in ("gold", "free")
        ]
        try:
            ratio_while_serving(server, 400)  # until everybody has begun
            assert ratio_while_serving(server, 3000) == pytest.approx(3, rel=0.1)
            for number in range(8):
                clients.ask("light", number)
            server.patch(tenants=[{"name": "gold", "weight": 1}])
            ratio_while_serving(server, 400)
            assert ratio_while_serving(server, 3000) == pytest.approx(1, rel=0.1)
        finally:
            clients.stop()
    for future in running:
        future.result()
    light, free = (statistics.median(clients.ttft_s[tenant]) for tenant in ("light", "free"))
    assert light < free / 2
    page = MetricsPage(server.get("/metrics").text)
    assert page.total(metrics.SERVED_TOKENS, tenant="light", kind="generation") == 8 * MAX_TOKENS
    assert page.total(metrics.TENANT_VIRTUAL_TOKENS, tenant="light") > 0
