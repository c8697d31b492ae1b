"""What kopf is told to leave out."""

import asyncio
import pwd
import signal
import threading
from typing import Any, NoReturn

import kopf
import pytest

from paceline_operator.shell import handlers, kinds
from paceline_operator.shell.cache import Cache, Key
from paceline_operator.shell.errors import WatchFailed
from paceline_operator.shell.handlers import Untracked
from paceline_operator.shell.queue import WorkQueue
from paceline_operator.testing import http_api


class Uncopied:
    """A field that tells when somebody copies it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise AssertionError("an object of an event was copied")


def test_no_object_of_an_event_is_copied_compared_or_stored() -> None:
    body, patch = kopf.Body({"spec": {"field": Uncopied()}}), kopf.Patch()
    storage = Untracked()
    new = storage.build(body=body)
    assert new == storage.fetch(body=body)
    storage.store(body=body, patch=patch, essence=new)
    assert not patch


def test_watching_begins_for_a_user_without_a_name_and_its_end_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in an image: its uid stands in no table of users, and no variable names it."""

    def nameless(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nameless)
    has_begun = threading.Event()

    def log_in() -> kopf.ConnectionInfo:
        has_begun.set()
        return kopf.ConnectionInfo(server="http://127.0.0.1:9")  # nothing listens there

    async def begin() -> None:
        cache = Cache("m")
        queue = WorkQueue(_nothing, 1)
        ended = asyncio.Event()
        watching = asyncio.create_task(
            handlers.watch(
                cache, queue, [kinds.LLM_DEPLOYMENT], ("models",), "default", log_in, ended.set
            )
        )
        logged_in = asyncio.create_task(asyncio.to_thread(has_begun.wait, 20))
        await asyncio.wait((watching, logged_in), return_when=asyncio.FIRST_COMPLETED)
        assert not watching.done(), watching.exception()
        # Told at once, though tasks that are not kopf's own still run.
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(ended.wait(), 3)
        watching.cancel()
        await asyncio.gather(watching, logged_in, return_exceptions=True)

    asyncio.run(begin())
    assert has_begun.is_set()


def test_a_kind_that_is_gone_ends_the_watches_with_a_sentence() -> None:
    """As when somebody deletes the definition: a watch that begins anew is answered with 404."""

    async def watch() -> None:
        async with http_api.serving(is_gone=True) as address:
            await handlers.watch(
                Cache("m"),
                WorkQueue(_nothing, 1),
                [kinds.LLM_DEPLOYMENT],
                ("models",),
                "default",
                lambda: kopf.ConnectionInfo(server=address),
                lambda: None,
            )

    with pytest.raises(WatchFailed, match="could not find the requested resource"):
        asyncio.run(asyncio.wait_for(watch(), 20))


async def _nothing(_: Key) -> None:
    """No work."""
