"""The `type` of an error object by HTTP status: one word for one status at every port."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    412: "precondition_failed_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    502: "service_unavailable_error",
    503: "service_unavailable_error",
}


def error_type(status: int) -> str:
    """The word for an answer with this status."""
    return _TYPES.get(status, "internal_server_error")
