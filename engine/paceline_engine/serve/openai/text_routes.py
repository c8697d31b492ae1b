"""The small routes: models, tokens of a text and back, metrics, version."""

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from paceline_crds import routes
from paceline_engine import release
from paceline_engine.serve import metrics
from paceline_engine.serve.config import ServeConfig
from paceline_engine.serve.drain import Drain
from paceline_engine.serve.openai import openapi, validation
from paceline_engine.serve.openai.bodies import read_body
from paceline_engine.serve.openai.errors import bad_request
from paceline_engine.serve.openai.generation_routes import render_chat
from paceline_engine.serve.openai.openai_types import DetokenizeBody, TokenizeBody
from paceline_engine.serve.openai.served_model import ServedModel
from paceline_engine.serve.step.engine_client import EngineClient
from paceline_engine.serve.text import detokenizer


def router(
    client: EngineClient, config: ServeConfig, served: ServedModel, drain: Drain
) -> APIRouter:
    """Routes that need no generation."""
    api = APIRouter(tags=["text"])
    _add_models(api, client, served)
    _add_metrics(api, client, served, drain)
    _add_tokenize(api, config, served)
    _add_detokenize(api, config, served)

    @api.get(routes.VERSION)
    async def version() -> JSONResponse:
        """The release that runs here."""
        return JSONResponse({"version": release.version()})

    return api


def _add_models(api: APIRouter, client: EngineClient, served: ServedModel) -> None:
    def described() -> dict[str, Any]:
        info = client.info
        return {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "paceline",
            "root": served.root,
            "parent": None,
            "max_model_len": None if info is None else info.max_model_len,
        }

    @api.get(routes.MODELS, responses=openapi.errors(401))
    async def models() -> JSONResponse:
        """The one model that is served."""
        return JSONResponse({"object": "list", "data": [described()]})

    @api.get(f"{routes.MODELS}/{{model:path}}", responses=openapi.errors(401, 404))
    async def model_by_name(model: str) -> JSONResponse:
        """The model, if it has this name."""
        served.check_name(model)
        return JSONResponse(described())


def _add_metrics(api: APIRouter, client: EngineClient, served: ServedModel, drain: Drain) -> None:
    @api.get(routes.METRICS, response_class=PlainTextResponse, responses=openapi.errors(401))
    async def page() -> Response:
        """Prometheus metrics, under vLLM's names and our own."""
        return metrics.answer(client, served.name, drain)


def _add_tokenize(api: APIRouter, config: ServeConfig, served: ServedModel) -> None:
    @api.post(routes.TOKENIZE, **openapi.taking(TokenizeBody))
    async def tokenize(http: HttpRequest) -> JSONResponse:
        """Tokens of a prompt, or of a chat as the chat template writes it."""
        body = await read_body(TokenizeBody, http)
        served.check_name(body.model)
        headers = validation.check_fields(body, strict=config.strict)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("send either prompt or messages", "prompt")
        loaded = await served.text()
        if body.messages is not None:
            validation.check_messages(body.messages)
            validation.check_chat_prompt(body)
            trusts = config.trust_request_chat_template
            text = render_chat(body, loaded, trusts_templates=trusts)
        else:
            text = body.prompt or ""
        adds = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
        token_ids = await loaded.tokenizer.encode_apart(text, add_special_tokens=adds)
        vocabulary = loaded.tokenizer.vocabulary
        answer: dict[str, Any] = {
            "count": len(token_ids),
            "max_model_len": loaded.info.max_model_len,
            "tokens": token_ids,
        }
        if body.return_token_strs:
            answer["token_strs"] = [vocabulary.name_of(token_id) for token_id in token_ids]
        return JSONResponse(answer, headers=headers)


def _add_detokenize(api: APIRouter, config: ServeConfig, served: ServedModel) -> None:
    @api.post(routes.DETOKENIZE, **openapi.taking(DetokenizeBody))
    async def detokenize(http: HttpRequest) -> JSONResponse:
        """The text of tokens."""
        body = await read_body(DetokenizeBody, http)
        served.check_name(body.model)
        headers = validation.check_fields(body, strict=config.strict)
        loaded = await served.text()
        validation.check_token_ids("tokens", body.tokens, loaded.info.vocab_size)
        # Long lists would hold up everybody's stream.
        text = await asyncio.to_thread(
            detokenizer.decode,
            loaded.tokenizer.vocabulary,
            body.tokens,
            skip_special_tokens=bool(body.skip_special_tokens),
        )
        return JSONResponse({"prompt": text}, headers=headers)
