"""The first answer of a deployment, streamed to the terminal, and how to ask for more."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline_crds import routes
from paceline_engine.serve.http_stream import AnswerCut, ResponseStream

DEFAULT_PROMPT = "What is the capital of France?"
_MAX_TOKENS = 64


def plain_key(api_key_file: str) -> str:
    """A key that the file holds in plain, for our own sample; empty if it holds digests only."""
    for line in Path(api_key_file).read_text(encoding="utf-8").splitlines():
        key = line.strip()
        name, mark, digest = key.partition(":")
        is_digest = bool(name and mark) and len(digest) == 64
        if key and not key.startswith("#") and not is_digest:
            return key
    return ""


async def stream_answer(
    base_url: str, model: str, prompt: str, write: Callable[[str], None], *, api_key: str = ""
) -> str:
    """Ask one question and write the answer as it comes.

    Returns:
        What went wrong, empty if nothing did. A model without a chat template is asked to go on
        with the prompt as plain text.
    """
    chat = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    status, error = await _ask(base_url + routes.CHAT_COMPLETIONS, chat, write, api_key)
    if status == 400 and "template" in error:
        text = {"model": model, "prompt": prompt}
        status, error = await _ask(base_url + routes.COMPLETIONS, text, write, api_key)
    return error


async def _ask(
    url: str, body: dict[str, Any], write: Callable[[str], None], api_key: str
) -> tuple[int, str]:
    body |= {"stream": True, "temperature": 0, "max_tokens": _MAX_TOKENS}
    headers = [(b"content-type", b"application/json")]
    if api_key:
        headers.append((b"authorization", b"Bearer " + api_key.encode()))
    try:
        stream = await ResponseStream.open(
            "POST", url, headers=headers, body=json.dumps(body).encode()
        )
        await stream.head()
        if stream.status != 200:
            return stream.status, _message_of(await stream.body())
        rest = b""
        async for piece in stream.pieces():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                text, error = _text_of(event)
                if error:
                    return stream.status, error
                write(text)
    except (OSError, AnswerCut) as error:
        return 0, str(error) or repr(error)
    return stream.status, ""


def _text_of(event: bytes) -> tuple[str, str]:
    payload = event.removeprefix(b"data: ")
    if payload == b"[DONE]" or not payload:
        return "", ""
    chunk = json.loads(payload)
    if "error" in chunk:
        return "", str(chunk["error"].get("message"))
    choices = chunk.get("choices") or [{}]
    first = choices[0]
    return (first.get("delta") or first).get("content") or first.get("text") or "", ""


def _message_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:300]


def how_to_ask(base_url: str, model: str, *, needs_key: bool) -> str:
    """Ready-to-paste lines for curl and for the openai SDK."""
    message = {"role": "user", "content": "Hello!"}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": 200})
    key = " -H 'Authorization: Bearer YOUR_KEY'" if needs_key else ""
    api_key = "YOUR_KEY" if needs_key else "none"
    return f"""\
curl {base_url}{routes.CHAT_COMPLETIONS} -H 'Content-Type: application/json'{key} \\
  -d {shlex.quote(body)}

python3 - <<'END'   # pip install openai
from openai import OpenAI
client = OpenAI(base_url="{base_url}{routes.OPENAI_BASE}", api_key="{api_key}")
answer = client.chat.completions.create(
    model="{model}", max_tokens=200,
    messages=[{{"role": "user", "content": "Hello!"}}])
print(answer.choices[0].message.content)
END"""
