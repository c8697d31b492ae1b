"""POST /v1/chat/completions and POST /v1/completions."""

import time

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from paceline_crds import routes
from paceline_engine.serve.openai import openapi, validation
from paceline_engine.serve.openai.bodies import read_body
from paceline_engine.serve.openai.errors import bad_request
from paceline_engine.serve.openai.launch import Launcher, echoed_prompt
from paceline_engine.serve.openai.openai_types import ChatBody, CompletionBody, TokenizeBody
from paceline_engine.serve.openai.rendering import Prompt
from paceline_engine.serve.openai.sampling import fit_prompt
from paceline_engine.serve.openai.served_model import LoadedText
from paceline_engine.serve.text.chat import ChatTemplateFailed


def router(launcher: Launcher) -> APIRouter:
    """The two routes that generate."""
    api = APIRouter(tags=["generation"])

    @api.post(routes.CHAT_COMPLETIONS, **openapi.generating(ChatBody))
    async def chat_completions(http: HttpRequest) -> Response:
        """Continue a chat."""
        arrival_s = time.monotonic()
        body = await read_body(ChatBody, http)
        launcher.served.check_name(body.model)
        headers = validation.check_fields(body, strict=launcher.config.strict)
        validation.check_chat(body)
        loaded = await launcher.served.text()
        text = render_chat(
            body, loaded, trusts_templates=launcher.config.trust_request_chat_template
        )
        token_ids = await loaded.tokenizer.encode_apart(
            text, add_special_tokens=bool(body.add_special_tokens)
        )
        last = body.messages[-1]
        prompt = Prompt(
            token_ids=fit_prompt(token_ids, body, loaded.info, "messages"),
            text=_echoed_message(body) if last.role == "assistant" else "",
        )
        return launcher.launch(http, body, [prompt], loaded, arrival_s=arrival_s, headers=headers)

    @api.post(routes.COMPLETIONS, **openapi.generating(CompletionBody))
    async def completions(http: HttpRequest) -> Response:
        """Continue texts."""
        arrival_s = time.monotonic()
        body = await read_body(CompletionBody, http)
        launcher.served.check_name(body.model)
        headers = validation.check_fields(body, strict=launcher.config.strict)
        validation.check_completion(body)
        loaded = await launcher.served.text()
        prompts = [
            await _completion_prompt(prompt, body, loaded) for prompt in _prompt_list(body.prompt)
        ]
        return launcher.launch(http, body, prompts, loaded, arrival_s=arrival_s, headers=headers)

    return api


def render_chat(
    body: ChatBody | TokenizeBody, loaded: LoadedText, *, trusts_templates: bool
) -> str:
    """The prompt text of a chat.

    Raises:
        ApiError: 400, also when the template raises; the message is the template's.
    """
    if body.chat_template is not None and not trusts_templates:
        raise bad_request(
            "chat_template is not accepted from requests here, because a template is a program; "
            "start the server with --trust-request-chat-template",
            "chat_template",
            "unsupported",
        )
    continues = bool(body.continue_final_message)
    adds = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    messages = [message.model_dump(exclude_none=True) for message in body.messages or []]
    try:
        return loaded.template.render(
            messages,
            add_generation_prompt=adds,
            continue_final_message=continues,
            chat_template=body.chat_template,
            template_kwargs=body.chat_template_kwargs,
        )
    except ChatTemplateFailed as error:
        raise bad_request(str(error), "messages", "chat_template_failed") from error


def _echoed_message(body: ChatBody) -> str:
    content = body.messages[-1].content
    if isinstance(content, list):
        content = "\n".join(part.text or "" for part in content)
    return content or ""


def _prompt_list(
    prompt: str | list[int] | list[str] | list[list[int]],
) -> list[str] | list[list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [prompt]
    return prompt


async def _completion_prompt(
    prompt: str | list[int], body: CompletionBody, loaded: LoadedText
) -> Prompt:
    given: str | None = None
    if isinstance(prompt, str):
        token_ids = await loaded.tokenizer.encode_apart(
            prompt, add_special_tokens=body.add_special_tokens is not False
        )
        given = prompt
    else:
        token_ids = prompt
    fitted = fit_prompt(token_ids, body, loaded.info, "prompt")
    if len(fitted) != len(token_ids):
        given = None
    return echoed_prompt(fitted, given, body, loaded)
