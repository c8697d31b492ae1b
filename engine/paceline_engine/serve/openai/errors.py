"""Every failure becomes one kind of answer here: `{"error": {message, type, param, code}}`."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from paceline_engine.core.request import Finished, FinishReason, Refusal
from paceline_engine.serve.error_types import error_type
from paceline_engine.serve.step.engine_client import EngineGone, RequestRefused

_LOG = logging.getLogger(__name__)


class ApiError(Exception):
    """An answer other than success.

    Attributes:
        status: HTTP status.
        message: what, expected, got, what to do.
        param: field of the request that is at fault.
        code: short name that programs can test for.
        headers: besides the content type.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error object, as OpenAI's SDKs read it."""
        kind = error_type(self.status)
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code or kind.removesuffix("_error"),
            }
        }

    def encode(self) -> bytes:
        """The error object as JSON."""
        return msgspec.json.encode(self.body())

    def response(self) -> Response:
        """The whole answer."""
        return Response(
            self.encode(), self.status, headers=self.headers, media_type="application/json"
        )


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, retry_after_s: int = 1) -> ApiError:
    """A 503 that says when to come back."""
    return ApiError(503, message, headers={"Retry-After": str(max(1, retry_after_s))})


def from_refusal(refusal: Refusal) -> ApiError:
    """The engine did not take the request."""
    headers = {}
    if refusal.status in {429, 503}:
        headers["Retry-After"] = str(max(1, refusal.retry_after_s or 1))
    return ApiError(refusal.status, refusal.message, param=refusal.param, headers=headers)


def from_finished(finished: Finished) -> ApiError | None:
    """How a request ended, if that is a failure."""
    if finished.reason is FinishReason.TIMEOUT:
        message = finished.message or "the request did not start before its deadline"
        # OpenAI's SDKs would try a 408 again, which makes an overload worse.
        return ApiError(408, message, code="timeout", headers={"x-should-retry": "false"})
    if finished.reason is FinishReason.ERROR:
        return ApiError(500, finished.message or "the engine failed on this request")
    if finished.reason is FinishReason.ABORT:
        return unavailable(finished.message or "the request was aborted by the server")
    return None


def translate(error: BaseException) -> ApiError:
    """Any exception as an answer; what nobody foresaw is logged and becomes a 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestRefused):
        return from_refusal(error.refusal)
    if isinstance(error, EngineGone):
        return unavailable(str(error) or "the engine is not running")
    if isinstance(error, HTTPException):
        return _from_http(error)
    _LOG.error("unexpected error while answering a request", exc_info=error)
    return ApiError(500, "internal error; the server's log has the details", code="internal_error")


def _from_http(error: HTTPException) -> ApiError:
    message = str(error.detail)
    code = None
    if error.status_code == 404:
        message, code = "no such route; the routes are listed in /openapi.json", "route_not_found"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message, code = f"method not allowed here; use {allowed}", "method_not_allowed"
    elif not message:
        message = HTTPStatus(error.status_code).phrase
    return ApiError(error.status_code, message, code=code, headers=error.headers)


async def _answer(_request: HttpRequest, error: Exception) -> Response:
    return translate(error).response()


def install(app: FastAPI) -> None:
    """Make each foreseen failure answer in this shape; `RequestMiddleware` takes the others."""
    for kind in (ApiError, RequestRefused, EngineGone, HTTPException):
        app.add_exception_handler(kind, _answer)
