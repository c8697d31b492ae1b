"""The public app over a real step process that computes a tiny model."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_crds.settings import EngineSettings
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.serve.step.socket_client import SocketEngineClient
from paceline_engine.testing.tiny_model import TinyModel

ODD_VALUES: list[dict[str, Any]] = [
    {"repetition_penalty": 0.001},
    {"repetition_penalty": 1000},
    {"temperature": 1e-300},
    {"top_p": 1e-300},
    {"min_p": 1},
    {"top_k": 10**30},
    {"logit_bias": {"5": 100, "6": -100}},
    {"allowed_token_ids": [7]},
    {"bad_words": ["the", "a b"]},
    {"min_tokens": 5, "stop_token_ids": [9], "ignore_eos": True},
    {"seed": -(2**63), "presence_penalty": 2, "frequency_penalty": -2},
    {"prompt_logprobs": 20, "logprobs": 20},
]


def play(folder: Path, go: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = EngineSettings.model_validate({"numKvBlocks": 256, "dtype": "Float32"})
        config = ServeConfig(model="tiny", model_dir=folder, settings=settings)
        client = SocketEngineClient(config)
        await client.start()
        try:
            while client.startup.phase != "Ready":
                assert client.startup.phase != "Failed", client.startup.message
                await asyncio.sleep(0.02)
            app = create_public_app(client, config, Drain(shutdown_timeout_s=1.0))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://tiny", timeout=60
            ) as http:
                await go(http)
            assert await client.requests() == []
        finally:
            await client.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_real_model_answers_alike_streamed_or_not_and_takes_odd_values(tmp_path: Path) -> None:
    async def go(http: httpx.AsyncClient) -> None:
        await streamed_is_whole(http)
        await echo_scores_the_prompt_as_the_output_was_scored(http)
        for odd in ODD_VALUES:
            body = {"prompt": "The bridge", "max_tokens": 8, **odd}
            answer = await http.post("/v1/completions", json=body)
            assert answer.status_code == 200, (odd, answer.text)

    async def streamed_is_whole(http: httpx.AsyncClient) -> None:
        body = {
            "messages": [{"role": "user", "content": "Hello 日本 🎉"}],
            "max_tokens": 60,
            "seed": 5,
            "n": 3,
            "return_token_ids": True,
        }
        whole = (await http.post("/v1/chat/completions", json=body)).json()["choices"]
        streamed = await http.post("/v1/chat/completions", json={**body, "stream": True})
        texts: list[str] = ["", "", ""]
        ids: list[list[int]] = [[], [], []]
        for event in streamed.text.strip().split("\n\n")[:-1]:
            for choice in json.loads(event.removeprefix("data: "))["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
                ids[choice["index"]] += choice.get("token_ids", [])
        assert [choice["message"]["content"] for choice in whole] == texts
        assert [choice["token_ids"] for choice in whole] == ids
        assert len(set(texts)) == 3
        stop = texts[0][5:8]
        cut = await http.post("/v1/chat/completions", json={**body, "n": 1, "stop": stop})
        (choice,) = cut.json()["choices"]
        assert choice["message"]["content"] == texts[0][: texts[0].find(stop)]
        assert cut.json()["usage"]["completion_tokens"] == len(choice["token_ids"])

    async def echo_scores_the_prompt_as_the_output_was_scored(http: httpx.AsyncClient) -> None:
        body = {"prompt": [80, 81], "max_tokens": 6, "temperature": 0, "logprobs": 2}
        written = await http.post("/v1/completions", json={**body, "return_token_ids": True})
        (choice,) = written.json()["choices"]
        again = {**body, "prompt": [80, 81, *choice["token_ids"]], "max_tokens": 0, "echo": True}
        scored = (await http.post("/v1/completions", json=again)).json()["choices"][0]["logprobs"]
        assert scored["tokens"][2:] == choice["logprobs"]["tokens"]
        assert scored["token_logprobs"][2:] == pytest.approx(
            choice["logprobs"]["token_logprobs"], abs=1e-4
        )

    play(TinyModel().write(tmp_path), go)
