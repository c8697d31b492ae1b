import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.testing.bodies import CHAT
from paceline_engine.testing.scripted_engine import ScriptedEngine, saying

TEXT = {"prompt": "Hello"}


def client_of(folder: Path, **config: Any) -> tuple[TestClient, ScriptedEngine]:
    engine = ScriptedEngine(folder, saying([80, 81, 82]))
    app = create_public_app(
        engine, ServeConfig(model="tiny", **config), Drain(shutdown_timeout_s=1.0)
    )
    return TestClient(app, raise_server_exceptions=False), engine


@pytest.fixture(scope="module")
def client(tiny_folder: Path) -> Iterator[TestClient]:
    made, engine = client_of(tiny_folder)
    yield made
    assert not engine.running


def refused(client: TestClient, path: str, body: Any, param: str | None, *words: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=data, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    for word in words:
        assert word in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", -2.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", 2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", 1e300),
        ("min_tokens", -1),
        ("n", 0),
        ("n", 129),
        ("n", "2"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", 5),
        ("stop", ["a"] * 17),
        ("seed", 2**63),
        ("seed", 0.5),
        ("logit_bias", {"one": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"512": 1}),
        ("logit_bias", [1]),
        ("stop_token_ids", [512]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [512]),
        ("bad_words", [""]),
        ("bad_words", ["x"] * 1025),
        ("bad_words", ["x" * 129]),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 21),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("stream_options", {"include_usage": True}),
        ("priority", "high"),
        ("priority", 2**40),
        ("request_id", "two words"),
        ("model", 5),
    ],
)
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]
)
def test_each_value_rule_names_its_field(
    client: TestClient, path: str, body: dict[str, Any], field: str, value: Any
) -> None:
    data = json.dumps({**body, field: value}).encode()
    answer = client.post(path, content=data, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith(field)
    assert field in error["message"]


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"max_completion_tokens": 4, "max_tokens": 9, "min_tokens": 5}, "min_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, None),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "none", "tools": [{}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"guided_json": {}, "guided_choice": ["a"]}, "guided_choice"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"chat_template": "x"}, "chat_template"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_rules_of_chat(client: TestClient, extra: dict[str, Any], param: str | None) -> None:
    answer = client.post("/v1/chat/completions", json={**CHAT, **extra})
    assert answer.status_code == 400, answer.text
    if param is not None:
        assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [512]}, "prompt"),
        ({"prompt": [[1], [512]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({**TEXT, "max_tokens": 0}, "max_tokens"),
        ({**TEXT, "max_tokens": -1, "echo": True}, "max_tokens"),
        ({**TEXT, "logprobs": 21}, "logprobs"),
        ({**TEXT, "logprobs": True}, "logprobs"),
        ({**TEXT, "suffix": "x"}, "suffix"),
        ({**TEXT, "best_of": 2}, "best_of"),
        ({**TEXT, "n": 3, "best_of": 2}, "best_of"),
        ({"prompt": ["a"] * 9, "n": 128}, "n"),
    ],
)
def test_rules_of_text_completions(client: TestClient, body: Any, param: str) -> None:
    refused(client, "/v1/completions", body, param)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"1", b'"x"', b"null", b"\xff", b'{"a": "\\ud800"}', b"[" * 5000]
)
def test_what_is_no_json_object_is_refused(client: TestClient, path: str, data: bytes) -> None:
    refused(client, path, data, None)


def test_a_number_with_thousands_of_digits_is_refused(client: TestClient) -> None:
    for field in ("seed", "temperature", "max_tokens", "n"):
        body = b'{"prompt": "a", "%b": 1%b}' % (field.encode(), b"0" * 5000)
        answer = client.post(
            "/v1/completions", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in {200, 400}, field


def test_a_prompt_that_is_too_long_names_both_numbers(client: TestClient) -> None:
    refused(client, "/v1/completions", {"prompt": [5] * 512}, "prompt", "512 tokens", "longest")
    chat = {"messages": [{"role": "user", "content": "日" * 600}]}
    refused(client, "/v1/chat/completions", chat, "messages", "512")


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"temperature": 0, "top_k": -1, "min_p": 0, "seed": -1, "stop": [], "logprobs": True},
        {"top_p": 1, "max_tokens": 10**30, "n": None, "stream": False, "modalities": ["text"]},
    ],
)
def test_fields_that_ask_for_nothing_special_are_fine(
    client: TestClient, extra: dict[str, Any]
) -> None:
    answer = client.post("/v1/chat/completions", json={**CHAT, **extra})
    assert answer.status_code == 200, answer.text
    assert "x-paceline-warning" not in answer.headers


def test_an_unknown_field_is_warned_of(client: TestClient) -> None:
    body = {**CHAT, "tempratur": 1, "ä\r\nx": 1, "stream_options": None}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-paceline-warning"].startswith("ignored unknown fields: tempratur, ")


def test_under_strict_an_unknown_field_is_an_error(tiny_folder: Path) -> None:
    client, _ = client_of(tiny_folder, strict=True)
    refused(client, "/v1/chat/completions", {**CHAT, "tempratur": 1}, "tempratur", "unknown field")
    nested = {**CHAT, "stream": True, "stream_options": {"x": 1}}
    refused(client, "/v1/chat/completions", nested, "stream_options.x")


def test_an_unknown_model_is_404(client: TestClient) -> None:
    answer = client.post("/v1/completions", json={**TEXT, "model": "other"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json()["error"]["param"] == "model"
