import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from paceline_engine.core.request import FinishReason, Refusal, Request
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai import middleware
from paceline_engine.serve.openai.app import create_public_app
from paceline_engine.serve.step.engine_client import EngineGone, OutputDelta, Startup
from paceline_engine.testing.bodies import CHAT
from paceline_engine.testing.scripted_engine import Play, ScriptedEngine, ending, saying


class Server:
    def __init__(self, folder: Path, play: Play | None = None, **config: Any) -> None:
        self.engine = ScriptedEngine(folder, play or saying([80, 81, 82]))
        app = create_public_app(
            self.engine, ServeConfig(model="tiny", **config), Drain(shutdown_timeout_s=1.0)
        )
        self.client = TestClient(app, raise_server_exceptions=False)

    def chat(self, **extra: Any) -> httpx.Response:
        answer: httpx.Response = self.client.post("/v1/chat/completions", json={**CHAT, **extra})
        assert not self.engine.running
        return answer


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def failing(reason: FinishReason, *, after: int = 0, message: str = "") -> Play:
    async def play(request: Request) -> AsyncIterator[OutputDelta]:
        for i in range(after):
            yield OutputDelta(token_ids=[80 + i])
        yield OutputDelta(token_ids=[], finished=ending(request, reason, after, message=message))

    return play


def test_an_unknown_route_is_404(tiny_folder: Path) -> None:
    answer = Server(tiny_folder).client.get("/v1/nothing")
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "route_not_found"


def test_an_encoded_body_is_415_and_the_encoding_is_named(tiny_folder: Path) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = Server(tiny_folder).client.post("/v1/completions", content=b"\x1f", headers=headers)
    assert answer.status_code == 415
    assert "'gzip'" in error_of(answer)["message"]


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/v1/models", "/metrics"])
def test_head_answers_as_get_does(tiny_folder: Path, path: str) -> None:
    client = Server(tiny_folder).client
    assert client.head(path).status_code == client.get(path).status_code == 200
    assert client.head("/v1/completions").status_code == 405


def test_a_wrong_method_is_405_and_says_which(tiny_folder: Path) -> None:
    answer = Server(tiny_folder).client.get("/v1/completions")
    assert answer.status_code == 405
    assert "POST" in error_of(answer)["message"]
    assert answer.headers["allow"] == "POST"


def test_no_key_is_401_in_the_same_shape(tiny_folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"blue:{hashlib.sha256(b'sk-blue').hexdigest()}\n")
    server = Server(tiny_folder, api_key_file=keys)
    answer = server.client.get("/v1/models")
    assert answer.status_code == 401
    assert error_of(answer)["code"] == "invalid_api_key"
    assert server.client.get("/health").status_code == 200
    bearer = {"Authorization": "Bearer sk-blue"}
    assert server.client.post("/v1/completions", json={"prompt": "a"}, headers=bearer).is_success
    assert server.engine.submitted[0].tenant == "blue"


def test_another_content_type_is_415(tiny_folder: Path) -> None:
    client = Server(tiny_folder).client
    answer = client.post("/v1/completions", data={"prompt": "a"})
    assert answer.status_code == 415
    assert "Content-Type" in error_of(answer)["message"]
    charset = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post("/v1/completions", content=b'{"prompt": "a"}', headers=charset).is_success


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_413(tiny_folder: Path, chunked: bool) -> None:
    part = b" " * (middleware.MAX_BODY_BYTES // 4 + 1)
    answer = Server(tiny_folder).client.post(
        "/v1/completions",
        content=iter([part] * 4) if chunked else part * 4,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "body_too_large"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_refusal_keeps_its_status_streamed_or_not(
    tiny_folder: Path, status: int, n: int, stream: bool
) -> None:
    server = Server(tiny_folder)
    refusal = Refusal(status=status, message="too much", param="prompt", retry_after_s=7)
    # The last choice is refused: those before it must not be left behind.
    server.engine.refuse = lambda request: refusal if request.params.choice == n - 1 else None
    answer = server.chat(stream=stream, n=n)
    assert answer.status_code == status
    assert error_of(answer)["message"] == "too much"
    assert answer.headers.get("retry-after") == (None if status == 400 else "7")
    assert len(server.engine.submitted) == n - 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "status"),
    [(FinishReason.TIMEOUT, 408), (FinishReason.ERROR, 500), (FinishReason.ABORT, 503)],
)
def test_an_end_before_the_first_token_has_its_own_status(
    tiny_folder: Path, reason: FinishReason, status: int, stream: bool
) -> None:
    answer = Server(tiny_folder, failing(reason, message="so it went")).chat(stream=stream)
    assert answer.status_code == status
    assert error_of(answer)["message"] == "so it went"
    assert answer.headers.get("x-should-retry") == ("false" if status == 408 else None)
    assert ("retry-after" in answer.headers) == (status == 503)


def test_a_stream_that_is_cut_ends_with_an_error_event(tiny_folder: Path) -> None:
    play = failing(FinishReason.ABORT, after=2, message="the server is shutting down")
    answer = Server(tiny_folder, play).chat(stream=True)
    assert answer.status_code == 200
    events = answer.text.strip().split("\n\n")
    assert events[-1].startswith('data: {"error":{"message":"the server is shutting down"')
    assert "[DONE]" not in answer.text


def test_an_engine_that_dies_is_503_or_an_error_event(tiny_folder: Path) -> None:
    def dying(after: int) -> Play:
        async def play(request: Request) -> AsyncIterator[OutputDelta]:
            for _ in range(after):
                yield OutputDelta(token_ids=[80])
            raise EngineGone("the step process ended")

        return play

    assert Server(tiny_folder, dying(0)).chat(stream=True).status_code == 503
    assert Server(tiny_folder, dying(3)).chat().status_code == 503
    streamed = Server(tiny_folder, dying(1)).chat(stream=True)
    assert "the step process ended" in streamed.text
    assert Server(tiny_folder, dying(1)).chat(n=3).status_code == 503


def test_a_model_that_loads_is_503(tiny_folder: Path) -> None:
    server = Server(tiny_folder)
    server.engine.info = None
    server.engine.startup = Startup(phase="Loading")
    answer = server.chat()
    assert answer.status_code == 503
    assert "Loading" in error_of(answer)["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert server.client.get("/v1/models").is_success


def test_a_folder_without_a_tokenizer_is_503_with_the_reason(
    tiny_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    answer = Server(tmp_path).chat()
    assert answer.status_code == 503
    assert "tokenizer" in error_of(answer)["message"]


def test_what_nobody_foresaw_is_500_in_the_same_shape_and_logged(
    tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: Request) -> AsyncIterator[OutputDelta]:
        raise ZeroDivisionError("oops")
        yield OutputDelta(token_ids=[])

    answer = Server(tiny_folder, broken).chat()
    assert answer.status_code == 500
    assert "oops" not in error_of(answer)["message"]
    assert "oops" in caplog.text


def test_a_template_that_raises_is_400_with_its_message(tmp_path: Path, tiny_folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    template = "{{ raise_exception('Conversation roles must alternate') }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    answer = Server(tmp_path).chat()
    assert answer.status_code == 400
    assert "roles must alternate" in error_of(answer)["message"]
    (tmp_path / "chat_template.jinja").unlink()
    assert "no chat template" in error_of(Server(tmp_path).chat())["message"]


def test_request_ids_come_back(tiny_folder: Path) -> None:
    server = Server(tiny_folder)
    answer = server.client.post(
        "/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "abc-1"}
    )
    assert answer.headers["x-request-id"] == "abc-1"
    assert answer.json()["id"] == "chatcmpl-abc-1"
    assert server.engine.submitted[0].external_id == "abc-1"
    answer = server.chat(request_id="from-body", n=2)
    assert answer.headers["x-request-id"] == "from-body"
    assert [r.external_id for r in server.engine.submitted[1:]] == ["from-body-0", "from-body-1"]
    odd = server.client.get("/version", headers={"X-Request-Id": "a b" * 100})
    assert len(odd.headers["x-request-id"]) == 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("prompt", [1] * (2**20 + 1), 2**20),
        ("prompt", ["a"] * 1025, 1024),
        ("prompt", [[1]] * 1025, 1024),
        ("stop_token_ids", [1] * 1025, 1024),
        ("logit_bias", {str(i): 1 for i in range(1025)}, 1024),
        ("stop", ["a"] * 17, 16),
        ("bad_words", ["a"] * 1025, 1024),
    ],
)
def test_a_long_list_is_refused_by_its_length(
    tiny_folder: Path, field: str, value: Any, limit: int
) -> None:
    answer = Server(tiny_folder).client.post("/v1/completions", json={"prompt": "a", field: value})
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == field
    assert f"at most {limit} entries" in error["message"]


def test_more_allowed_tokens_than_the_vocabulary_has_are_refused(tiny_folder: Path) -> None:
    answer = Server(tiny_folder).chat(allowed_token_ids=[1] * 100_000)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "allowed_token_ids"
    assert "the size of the vocabulary" in error_of(answer)["message"]
