"""Chat messages to one prompt text, through the model's own template."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import TemplateSyntaxError as _NoTemplate
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline_crds import routes
from paceline_engine.core.errors import EngineError, StartFailed

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ChatTemplateFailed(EngineError):
    """The template refused these messages, or is no template; the client's mistake (400)."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's words for training; here only its body matters."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance attribute)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; jinja2's own filter would escape for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    return _environment().from_string(source)


class ChatTemplate:
    """The chat template of a model.

    Args:
        source: jinja2 text; None if the model has none, then each request must bring its own.
        special_tokens: names as templates use them (`bos_token`) to texts.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)

    @classmethod
    def load(cls, model_dir: Path) -> "ChatTemplate":
        """From `chat_template.jinja`, else from `tokenizer_config.json`.

        Raises:
            StartFailed: UnsupportedModel, a file cannot be read, or what it holds is no template.
        """
        config_path = model_dir / "tokenizer_config.json"
        config = _read_config(config_path) if config_path.is_file() else {}
        special = {
            name: text
            for name in _SPECIAL_TOKENS
            if (text := _token_text(config.get(name))) is not None
        }
        path = model_dir / "chat_template.jinja"
        if path.is_file():
            return cls(_checked(_read_text(path), path), special)
        source = config.get("chat_template")
        if isinstance(source, list):
            entries = [entry for entry in source if isinstance(entry, dict)]
            source = next((e.get("template") for e in entries if e.get("name") == "default"), None)
        if source is not None and not isinstance(source, str):
            raise _unreadable(config_path, f"chat_template is a {type(source).__name__}, no text")
        return cls(source and _checked(source, config_path), special)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text.

        Args:
            messages: role, content and whatever else the template reads; content may be a list of
                text parts.
            add_generation_prompt: end with the head of an assistant's message.
            continue_final_message: the last message is left open, to be continued.
            chat_template: used instead of the model's.
            template_kwargs: more names for the template.

        Raises:
            ChatTemplateFailed: there is no template, it raised, or it cannot be compiled.
        """
        source = chat_template if chat_template is not None else self.source
        if source is None:
            raise ChatTemplateFailed(
                f"this model has no chat template; use {routes.COMPLETIONS} or send chat_template"
            )
        plain = [_with_plain_content(message) for message in messages]
        names: dict[str, Any] = {
            **self._special_tokens,
            "tools": None,
            "documents": None,
            **(template_kwargs or {}),
            "messages": plain,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = _compile(source).render(names)
        except _NoTemplate as error:
            raise ChatTemplateFailed(
                f"chat_template is no jinja template: line {error.lineno}: {error.message}; "
                "correct it or leave it out"
            ) from error
        except jinja2.exceptions.TemplateError as error:
            raise ChatTemplateFailed(f"the chat template refused the messages: {error}") from error
        except Exception as error:
            # A template is a program: on unforeseen messages it can raise anything.
            raise ChatTemplateFailed(
                f"the chat template failed on the messages: {type(error).__name__}: {error}"
            ) from error
        return _cut_after(text, plain[-1]["content"]) if continue_final_message else text


def _checked(source: str, path: Path) -> str:
    """The source, tried now rather than with every chat, which would blame its client."""
    try:
        _compile(source)
    except Exception as error:  # jinja2 writes Python, which has limits of its own
        where = f"line {error.lineno}: " if isinstance(error, _NoTemplate) else ""
        what = error.args[0] if error.args else type(error).__name__
        raise StartFailed(
            "UnsupportedModel",
            f"the chat template in {path} is no jinja template: {where}{what}; replace "
            "it, or remove it to serve completions only",
        ) from error
    return source


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(_read_text(path))
    except ValueError as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(config, dict):
        raise _unreadable(path, "it is no JSON object")
    return config


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, why: str) -> StartFailed:
    return StartFailed(
        "UnsupportedModel", f"cannot read {path}: {why}; replace the file or remove it"
    )


def _token_text(token: Any) -> str | None:
    if isinstance(token, str):
        return token
    return token.get("content") if isinstance(token, dict) else None


def _with_plain_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """Content parts of type text become one text, a line break between two parts."""
    plain = {name: value for name, value in message.items() if value is not None}
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    plain["content"] = content if content is not None else ""
    return plain


def _cut_after(text: str, final_content: str) -> str:
    """Leave the final message open: nothing stands behind its content."""
    final = final_content.strip()
    at = text.rfind(final)
    if at < 0:
        raise ChatTemplateFailed(
            "continue_final_message: the final message does not appear in the text that the chat "
            "template made, so it cannot be continued"
        )
    end = at + len(final)
    # White space at the content's end is kept as far as the template kept it.
    tail = final_content[len(final_content.rstrip()) :]
    while tail and not text.startswith(tail, end):
        tail = tail[:-1]
    return text[: end + len(tail)]
