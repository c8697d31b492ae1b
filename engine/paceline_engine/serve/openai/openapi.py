"""The OpenAPI document: request schemas with their bounds and every documented failure.

The routes read bodies themselves (FastAPI would answer 422 in its own form), so the schemas are
put into the document here.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from paceline_engine.serve.openai.openai_types import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    ErrorBody,
    TokenizeBody,
)

_REF = "#/components/schemas/{model}"
_MEANINGS = {
    400: "The request is wrong; param names the field.",
    401: "No API key, or one that is not accepted here.",
    404: "Unknown model or route.",
    408: "The request did not start before its deadline.",
    413: "The body is too large.",
    415: "The content type is not JSON.",
    429: "This client is over its share; Retry-After says when to come back.",
    500: "The engine failed on this request.",
    503: "Loading, draining, or the queue is full; Retry-After says when to come back.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route for these failures."""
    return {
        status: {
            "description": _MEANINGS[status],
            "content": {"application/json": {"schema": {"$ref": _REF.format(model="ErrorBody")}}},
        }
        for status in statuses
    }


def taking(body: type[BaseModel]) -> dict[str, Any]:
    """Arguments of a route that reads this body."""
    return {
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": {"$ref": _REF.format(model=body.__name__)}}
                },
            }
        },
        "responses": errors(400, 401, 404, 413, 415, 503),
    }


def generating(body: type[BaseModel]) -> dict[str, Any]:
    """Arguments of a route that generates from this body."""
    arguments = taking(body)
    arguments["responses"] = {
        200: {
            "description": "The answer, or with stream: true its chunks.",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/event-stream": {"schema": {"type": "string"}},
            },
        },
        **errors(400, 401, 404, 408, 413, 415, 429, 500, 503),
    }
    return arguments


def install(app: FastAPI) -> None:
    """Make `app.openapi()` complete."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            bodies = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, ErrorBody)
            _, schema = models_json_schema(
                [(body, "validation") for body in bodies], ref_template=_REF
            )
            made.setdefault("components", {}).setdefault("schemas", {}).update(schema["$defs"])
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way
