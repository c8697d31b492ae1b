"""Which replica hangs: what a kubelet finds out with a liveness probe, on this machine."""

import json

from paceline.replicas import Replica, get
from paceline_crds import routes
from paceline_engine.serve.http_stream import AnswerCut

MAX_UNANSWERED = 12
"""Probes in a row, 2 s each and half a second apart: half a minute. They are counted, not the time:
after Ctrl-Z and `fg` the time says nothing."""


async def why_hung(replica: Replica) -> str:
    """Why its process must be ended, or empty.

    Only what its own liveness calls a hang counts; one that fails in another way ends by itself
    and says why.
    """
    if replica.num_unanswered >= MAX_UNANSWERED:
        return f"has not answered {replica.num_unanswered} probes in a row"
    if replica.is_ready or replica.num_unanswered:
        return ""
    try:
        status, body = await get(replica.url + routes.HEALTH_LIVE)
        answer = json.loads(body)
        is_hung = status == 503 and answer.get("reason") == "Hung"
        return f"hangs: {answer.get('message', '')}" if is_hung else ""
    except (OSError, AnswerCut, ValueError, AttributeError):
        return ""
