"""A server with an FP8 KV cache says what that does to the logits, and serves."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from paceline_engine.testing.metrics_page import MetricsPage
from paceline_engine.testing.server_process import server_process
from paceline_engine.testing.tiny_model import TinyModel

pytestmark = pytest.mark.slow

PROMPTS = ["The water was cold", "What is the capital of France?", "Counting: one two three"]


def test_the_cost_of_the_logits_is_on_the_admin_port_and_in_the_metrics(tmp_path: Path) -> None:
    folder = TinyModel().write(tmp_path / "model")
    flags = ("--kv-cache-dtype", "fp8", "--num-kv-blocks", "128", "--dtype", "float32")
    with server_process(str(folder), tmp_path, *flags) as server:
        status = httpx.get(f"{server.admin_url}/v1/paceline/status").json()
        assert status["kvCacheDtype"] == "FP8"
        assert status["kernels"]["kv_cache"] == "float8_e4m3fn"
        measured = status["kvDivergence"]
        assert set(measured) == {"mean_kl_nats", "max_kl_nats", "max_abs_logit", "top1_agreement"}
        assert 0 < measured["mean_kl_nats"] < 0.5
        page = MetricsPage(server.get("/metrics").text)
        found = page.total("paceline:kv_cache_divergence", measure="mean_kl_nats")
        assert found == pytest.approx(measured["mean_kl_nats"])

        def complete(prompt: str) -> str:
            body = {"model": server.model, "prompt": prompt, "max_tokens": 20, "temperature": 0}
            text: str = server.post("/v1/completions", body)["choices"][0]["text"]
            return text

        alone = [complete(prompt) for prompt in PROMPTS]
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert list(pool.map(complete, PROMPTS)) == alone
        assert "FP8 KV cache, scales of the calibration" in server.log.read_text()
