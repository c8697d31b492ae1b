"""kopf: watches with their reconnections, and the process' end by signals.

Low-level event handlers alone: they leave no finalizer and no annotation. An event is a hint; what
it says goes into the cache, and the key of its LLMDeployment into the queue.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import kopf

from paceline_operator.shell import cache as caching
from paceline_operator.shell.cache import Cache
from paceline_operator.shell.errors import WatchFailed
from paceline_operator.shell.kinds import Kind
from paceline_operator.shell.queue import WorkQueue
from paceline_operator.shell.resync import selector_of
from paceline_operator.shell.session import Login

_log = logging.getLogger(__name__)
_IDENTITY: Any = "paceline-operator"
"""Among kopf's peers, which are off. Left to itself kopf asks for the user's name, and the uid of a
pod has none: the process would end. (Any: kopf exports no name for the type.)"""


class Untracked(kopf.DiffBaseStorage):  # type: ignore[misc] # kopf's types are Any here
    """Has kopf compare nothing with what it was before: no handler here asks for differences.

    Otherwise it copies every object of every event to compare it: a seventh of the processor time
    of an operator that takes up a hundred deployments (py-spy, 20 samples a second).
    """

    def build(
        self,
        *,
        body: kopf.Body,  # noqa: ARG002 - as kopf calls it
        extra_fields: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> kopf.BodyEssence:
        """Nothing of an object matters."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002
        """Nor of what it was."""
        return kopf.BodyEssence()

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is remembered."""


def hear(cache: Cache, queue: WorkQueue, kind: str, event: Mapping[str, Any]) -> None:
    """Take one event of a watch.

    Args:
        cache: gets the object.
        queue: gets the key, if it was news.
        kind: of the object.
        event: `type` (None for an object of the watch's first list) and `object`.
    """
    item = event["object"]
    is_gone = event["type"] == "DELETED"
    is_news = cache.see_gone(kind, item) if is_gone else cache.see(kind, item)
    key = caching.owner_key(kind, item)
    if is_news and key is not None:
        queue.add(key)


async def watch(
    cache: Cache,
    queue: WorkQueue,
    watched: Iterable[Kind],
    namespaces: Sequence[str],
    instance: str,
    log_in: Login,
    on_end: Callable[[], None],
) -> None:
    """Watch until the process is told to end.

    `on_end` is called as soon as it is, and watches have ended: kopf takes every task that it did
    not start for one of its own, and waits five seconds for them before it returns.

    Raises:
        WatchFailed: a kind is not served any more, or the server kept answering with errors.
    """
    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # The operator finds out by itself which kinds there are; without rights on the whole cluster
    # kopf would try for ever and serve nothing.
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.persistence.diffbase_storage = Untracked()
    settings.process.ultimate_exiting_timeout = None
    kopf.on.login(registry=registry)(_login(log_in))
    kopf.on.cleanup(registry=registry)(_ending(on_end))
    for kind in watched:
        place = kind.group, kind.version, kind.plural
        if selector := selector_of(kind, instance):
            settings.watching.label_selectors[place] = selector
        heard = _hearing(cache, queue, kind.name)
        kopf.on.event(*place, registry=registry, id=f"hear-{kind.plural}", when=heard)(_nothing)
    for name in ("kopf", "kopf.objects"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        await kopf.operator(
            registry=registry,
            settings=settings,
            namespaces=list(namespaces),
            clusterwide=not namespaces,
            standalone=True,
            identity=_IDENTITY,
        )
    except Exception as error:  # kopf's classes are its own, and none of them says what to do
        raise WatchFailed(
            f"a watch cannot go on ({error!r}); the operator ends and has to be started again: it "
            "waits then until the cluster serves what it needs"
        ) from error


def _hearing(cache: Cache, queue: WorkQueue, kind: str) -> Any:
    """Hears an event where kopf asks whether a handler wants it, and never wants it.

    To call a handler (its state, outcome, logger and time-out) took kopf longer than all that is
    done here; most events are echoes of the operator's own writes. Asked twice it would not matter.
    """

    def wants(event: Mapping[str, Any], **_: Any) -> bool:
        hear(cache, queue, kind, event)
        return False

    return wants


async def _nothing(**_: Any) -> None:
    """The handler that is never called."""


def _ending(on_end: Callable[[], None]) -> Any:
    async def handle(**_: Any) -> None:
        on_end()

    return handle


def _login(log_in: Login) -> Any:
    async def handle(**_: Any) -> kopf.ConnectionInfo:
        return await asyncio.to_thread(log_in)

    return handle
