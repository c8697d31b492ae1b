import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.testing.bodies import CHAT
from paceline_engine.testing.scripted_engine import ScriptedEngine, saying
from paceline_engine.testing.tiny_model import tiny_tokenizer

TEXT = "The river 日本 🎉 and the bridge held all of them"
TOKENIZER = tiny_tokenizer()
IDS = TOKENIZER.encode(TEXT).ids


class Server:
    def __init__(self, folder: Path, **play: Any) -> None:
        self.engine = ScriptedEngine(folder, saying(IDS, **play))
        app = create_public_app(
            self.engine, ServeConfig(model="tiny"), Drain(shutdown_timeout_s=1.0)
        )
        self._client = TestClient(app, raise_server_exceptions=False)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert not self.engine.running
        return answer

    def whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self.post(path, body).json()
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.post(path, {**body, "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, last = answer.text.removesuffix("\n\n").split("\n\n")
        assert last == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]


def chat_text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(c["delta"].get("content", "") for c in choices if c["index"] == index)


def plain_text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(c["text"] for c in choices if c["index"] == index)


def test_chunks_of_a_chat_come_in_order(tiny_folder: Path) -> None:
    body = {**CHAT, "stream_options": {"include_usage": True}}
    chunks = Server(tiny_folder).stream("/v1/chat/completions", body)
    role, *deltas, finish, usage = chunks
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(delta["choices"][0]["delta"]["content"] for delta in deltas)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [role, *deltas])
    assert finish["choices"][0]["delta"] == {}
    assert finish["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(IDS)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1


def test_without_the_option_there_is_no_usage_chunk(tiny_folder: Path) -> None:
    chunks = Server(tiny_folder).stream("/v1/chat/completions", CHAT)
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_chunk_of_a_text_completion_has_text_or_is_the_last(tiny_folder: Path) -> None:
    body = {"prompt": "Hello", "max_tokens": 100}
    *deltas, finish = Server(tiny_folder).stream("/v1/completions", body)
    assert all(delta["choices"][0]["text"] for delta in deltas)
    assert finish["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("width", [1, 3, 100])
@pytest.mark.parametrize("stop", [None, "bridge", [" 🎉", "日x"], "river 日"])
def test_streamed_text_is_the_whole_text(tiny_folder: Path, width: int, stop: Any) -> None:
    server = Server(tiny_folder, width=width)
    body = {**CHAT, "stop": stop, "n": 2}
    whole = server.whole("/v1/chat/completions", body)
    chunks = server.stream("/v1/chat/completions", body)
    for index in (0, 1):
        choice = whole["choices"][index]
        assert chat_text(chunks, index) == choice["message"]["content"]
        first = stop[0] if isinstance(stop, list) else stop
        expected = TEXT if first is None else TEXT[: TEXT.find(first)]
        assert choice["message"]["content"] == expected
        assert choice["finish_reason"] == ("length" if stop is None else "stop")
    plain = {"prompt": "Hello", "stop": stop, "max_tokens": 100}
    text = server.whole("/v1/completions", plain)["choices"][0]["text"]
    assert plain_text(server.stream("/v1/completions", plain)) == text == expected


def test_a_found_stop_string_is_told_to_the_engine_with_the_tokens_that_count(
    tiny_folder: Path,
) -> None:
    server = Server(tiny_folder)
    answer = server.whole("/v1/chat/completions", {**CHAT, "stop": "日本"})
    count = answer["usage"]["completion_tokens"]
    assert server.engine.finished == [(1, count, "日本")]
    assert server.engine.aborted == []
    assert TOKENIZER.decode(IDS[:count]).endswith("日本")


def test_choices_are_told_apart_and_counted(tiny_folder: Path) -> None:
    server = Server(tiny_folder, num_cached_tokens=16)
    answer = server.whole("/v1/completions", {"prompt": ["Hello", "world"], "n": 2})
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [r.params.choice for r in server.engine.submitted] == [0, 1, 0, 1]
    prompts = [r.prompt_token_ids for r in server.engine.submitted]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(prompts[0]) + len(prompts[2])
    assert usage["completion_tokens"] == 4 * 16
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2 * 16}


def test_token_ids_are_returned_when_asked_for(tiny_folder: Path) -> None:
    server = Server(tiny_folder)
    body = {**CHAT, "return_token_ids": True}
    answer = server.whole("/v1/chat/completions", body)
    assert answer["choices"][0]["token_ids"] == IDS
    assert answer["prompt_token_ids"] == list(server.engine.submitted[0].prompt_token_ids)
    chunks = server.stream("/v1/chat/completions", body)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [i for choice in choices for i in choice.get("token_ids", [])] == IDS
    assert choices[0]["prompt_token_ids"] == answer["prompt_token_ids"]


def test_every_token_has_its_log_probabilities_streamed_and_not(tiny_folder: Path) -> None:
    server = Server(tiny_folder)
    body = {**CHAT, "logprobs": True, "top_logprobs": 5}
    content = server.whole("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(item["bytes"]) for item in content).decode() == TEXT
    assert {len(item["top_logprobs"]) for item in content} == {5}
    chunks = server.stream("/v1/chat/completions", body)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [item for part in parts if part for item in part["content"]] == content


def test_log_probabilities_without_candidates_are_valid(tiny_folder: Path) -> None:
    answer = Server(tiny_folder).whole("/v1/chat/completions", {**CHAT, "logprobs": True})
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == len(IDS)
    assert all(item["top_logprobs"] == [] for item in content)


@pytest.mark.parametrize("prompt", ["Hello 日本, world", [80, 81, 300, 5], [1, 80]])
def test_echo_puts_each_prompt_token_where_its_text_is(tiny_folder: Path, prompt: Any) -> None:
    server = Server(tiny_folder)
    body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 40}
    choice = server.whole("/v1/completions", body)["choices"][0]
    shown = choice["logprobs"]
    num_prompt = len(server.engine.submitted[0].prompt_token_ids)
    assert len(shown["tokens"]) == num_prompt + min(40, len(IDS))
    lists = ("tokens", "text_offset", "token_logprobs", "top_logprobs")
    assert len({len(shown[name]) for name in lists}) == 1
    assert shown["token_logprobs"][0] is None
    assert shown["top_logprobs"][0] is None
    assert all(value is not None for value in shown["token_logprobs"][1:])
    for token, offset in zip(shown["tokens"], shown["text_offset"], strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert choice["text"][offset : offset + len(token)] == token
    if isinstance(prompt, str):
        assert choice["text"].startswith(prompt)
    chunks = server.stream("/v1/completions", body)
    assert plain_text(chunks) == choice["text"]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name in lists:
        assert [item for part in parts if part for item in part[name]] == shown[name]


def test_a_prompt_can_be_scored_without_output(tiny_folder: Path) -> None:
    server = Server(tiny_folder)
    body = {"prompt": "Hello world", "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = server.whole("/v1/completions", body)
    assert answer["choices"][0]["text"] == "Hello world"
    assert answer["usage"]["completion_tokens"] == 0
    chunks = server.stream("/v1/completions", body)
    assert plain_text(chunks) == "Hello world"


def test_an_echoed_character_may_be_finished_by_the_output(tiny_folder: Path) -> None:
    emoji = TOKENIZER.encode("🎉").ids
    server = Server(tiny_folder)
    server.engine.play = saying(emoji[2:])
    answer = server.whole("/v1/completions", {"prompt": emoji[:2], "echo": True})
    assert answer["choices"][0]["text"] == "🎉"
    alone = server.whole("/v1/completions", {"prompt": emoji[:2]})
    assert alone["choices"][0]["text"] == "��"


def test_prompt_log_probabilities_are_given_when_asked_for(tiny_folder: Path) -> None:
    server = Server(tiny_folder)
    answer = server.whole("/v1/chat/completions", {**CHAT, "prompt_logprobs": 1})
    shown = answer["prompt_logprobs"]
    assert len(shown) == len(server.engine.submitted[0].prompt_token_ids)
    assert shown[0] is None
    assert all(item for item in shown[1:])
    answer = server.whole("/v1/completions", {"prompt": "Hello world", "prompt_logprobs": 0})
    assert answer["choices"][0]["prompt_logprobs"][0] is None


def test_a_chat_can_be_continued_and_echoed(tiny_folder: Path) -> None:
    server = Server(tiny_folder)
    messages = [*CHAT["messages"], {"role": "assistant", "content": "Once upon"}]
    body = {"messages": messages, "continue_final_message": True, "echo": True}
    answer = server.whole("/v1/chat/completions", body)
    assert answer["choices"][0]["message"]["content"] == "Once upon" + TEXT
    assert chat_text(server.stream("/v1/chat/completions", body)) == "Once upon" + TEXT
    prompt = TOKENIZER.decode(
        server.engine.submitted[0].prompt_token_ids, skip_special_tokens=False
    )
    assert prompt.endswith("assistant\nOnce upon")


def test_priority_and_salt_reach_the_engine(tiny_folder: Path) -> None:
    server = Server(tiny_folder)
    server.whole("/v1/chat/completions", {**CHAT, "priority": 3, "cache_salt": "s"})
    request = server.engine.submitted[0]
    assert (request.priority, request.cache_salt) == (3, "s")
    assert request.deadline_s is None
