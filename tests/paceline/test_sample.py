"""The sample answer and the lines to paste."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline import sample
from paceline_engine.testing.loop_server import Receive, Scope, Send, serving_here


class Server:
    """Speaks text completions, and chat unless it has no template."""

    def __init__(self, *, has_template: bool = True, fails: bool = False) -> None:
        self.has_template = has_template
        self.fails = fails
        self.keys: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        self.keys.append(dict(scope["headers"]).get(b"authorization", b""))
        is_chat = scope["path"].endswith("/chat/completions")
        if is_chat and not self.has_template:
            error = {"error": {"message": "the model has no chat template"}}
            await _answer(send, 400, json.dumps(error).encode())
            return
        if self.fails:
            await _answer(send, 200, b'data: {"error": {"message": "the engine ended"}}\n\n')
            return
        key = "delta" if is_chat else "text"
        pieces: list[Any] = [{"content": t} for t in ("Pa", "ris")] if is_chat else ["Pa", "ris"]
        events = [{"choices": [{key: piece}]} for piece in pieces]
        events += [{"choices": [], "usage": {}}]
        text = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        await _answer(send, 200, text + b"data: [DONE]\n\n")


async def _answer(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def ask(server: Server, api_key: str = "") -> tuple[str, str]:
    written: list[str] = []

    async def test() -> str:
        async with serving_here(server) as url:
            return await sample.stream_answer(url, "m", "Where?", written.append, api_key=api_key)

    error = asyncio.run(asyncio.wait_for(test(), 10))
    return "".join(written), error


def test_an_answer_is_written_as_it_comes() -> None:
    server = Server()
    assert ask(server, "k") == ("Paris", "")
    assert server.keys == [b"Bearer k"]


def test_a_model_without_a_chat_template_is_asked_in_plain_text() -> None:
    assert ask(Server(has_template=False)) == ("Paris", "")


def test_an_error_event_is_told() -> None:
    assert ask(Server(fails=True)) == ("", "the engine ended")


def test_a_plain_key_is_found_among_digests(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\nteam:{'a' * 64}\n\nsecret\n")
    assert sample.plain_key(str(file)) == "secret"
    file.write_text(f"team:{'a' * 64}\n")
    assert sample.plain_key(str(file)) == ""


@pytest.mark.parametrize("needs_key", [False, True])
def test_the_lines_to_paste_are_valid_shell_and_python(needs_key: bool) -> None:
    text = sample.how_to_ask("http://127.0.0.1:8000", "it's", needs_key=needs_key)
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    python = text.partition("\n\n")[2].split("\n", 1)[1].rsplit("\n", 1)[0]
    compile(python, "sample", "exec")
    assert ("YOUR_KEY" in text) is needs_key
