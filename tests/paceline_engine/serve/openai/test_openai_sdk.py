"""What the real OpenAI SDK makes of a real server on loopback."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from paceline_engine.core.request import FinishReason, Refusal, Request
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.serve.step.engine_client import OutputDelta
from paceline_engine.testing.http_server import serving
from paceline_engine.testing.scripted_engine import ScriptedEngine, ending, saying
from paceline_engine.testing.tiny_model import tiny_tokenizer

TEXT = "The river 日本 🎉 and the bridge"
IDS = tiny_tokenizer().encode(TEXT).ids
HELLO = [{"role": "user", "content": "Hello"}]


@dataclass
class Served:
    engine: ScriptedEngine
    client: openai.OpenAI


@pytest.fixture(scope="module")
def running(tiny_folder: Path) -> Iterator[Served]:
    engine = ScriptedEngine(tiny_folder, saying(IDS))
    app = create_public_app(engine, ServeConfig(model="tiny"), Drain(shutdown_timeout_s=1.0))
    with (
        serving(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=1) as client,
    ):
        yield Served(engine, client)


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    running.engine.play = saying(IDS)
    running.engine.refuse = lambda _: None
    running.engine.submitted.clear()
    yield running
    assert not running.engine.running


def test_the_model_is_listed(served: Served) -> None:
    assert [model.id for model in served.client.models.list()] == ["tiny"]
    assert served.client.models.retrieve("tiny").id == "tiny"


def test_a_chat_answers_whole_and_streamed(served: Served) -> None:
    whole = served.client.chat.completions.create(model="tiny", messages=HELLO, seed=1)
    assert whole.choices[0].message.content == TEXT
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    stream = served.client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(IDS)


def test_the_stream_helper_understands_the_stream(served: Served) -> None:
    with served.client.chat.completions.stream(
        model="tiny", messages=HELLO, stop="bridge"
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == TEXT.removesuffix("bridge")


def test_choices_stops_and_log_probabilities(served: Served) -> None:
    answer = served.client.chat.completions.create(
        model="tiny", messages=HELLO, n=3, stop=["日"], logprobs=True, top_logprobs=2
    )
    assert [choice.message.content for choice in answer.choices] == ["The river "] * 3
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    logged = answer.choices[2].logprobs
    assert logged is not None
    assert logged.content is not None
    assert all(len(item.top_logprobs) == 2 for item in logged.content)


def test_text_completions(served: Served) -> None:
    answer = served.client.completions.create(
        model="tiny", prompt=["Hello", "world"], max_tokens=3, echo=True, logprobs=1
    )
    assert [choice.text[:5] for choice in answer.choices] == ["Hello", "world"]
    stream = served.client.completions.create(model="tiny", prompt="Hello", stream=True)
    assert TEXT.startswith("".join(chunk.choices[0].text for chunk in stream))


def test_extra_fields_pass_through_the_sdk(served: Served) -> None:
    served.client.chat.completions.create(
        model="tiny", messages=HELLO, extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True}
    )
    params = served.engine.submitted[0].params
    assert (params.top_k, params.min_p, params.ignore_eos) == (5, 0.1, True)


def test_errors_become_the_sdks_exceptions(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        served.client.chat.completions.create(model="tiny", messages=HELLO, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        served.client.chat.completions.create(model="other", messages=HELLO)
    assert unknown.value.code == "model_not_found"


def test_a_deadline_is_not_retried(served: Served) -> None:
    async def late(request: Request) -> AsyncIterator[OutputDelta]:
        yield OutputDelta(token_ids=[], finished=ending(request, FinishReason.TIMEOUT, 0))

    served.engine.play = late
    with pytest.raises(openai.APIStatusError) as caught:
        served.client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    assert caught.value.status_code == 408
    assert len(served.engine.submitted) == 1


@pytest.mark.slow
def test_a_full_queue_is_tried_again_as_it_says(served: Served) -> None:
    refusals = [Refusal(status=503, message="the queue is full", retry_after_s=1)]
    served.engine.refuse = lambda _: refusals.pop() if refusals else None
    answer = served.client.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.choices[0].message.content == TEXT
    assert not refusals


def test_a_stream_that_is_cut_raises(served: Served) -> None:
    async def cut(request: Request) -> AsyncIterator[OutputDelta]:
        yield OutputDelta(token_ids=IDS[:2])
        finished = ending(request, FinishReason.ABORT, 2, message="the server shuts down")
        yield OutputDelta(token_ids=[], finished=finished)

    served.engine.play = cut
    stream = served.client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="shuts down"):
        list(stream)
