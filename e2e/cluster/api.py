"""Reading objects straight from the API server, as `kubectl get` shows them.

A journey looks hundreds of times while it waits, and each start of kubectl costs a tenth of a
second of a processor that the engines under test need. What a person would type is still typed with
kubectl.
"""

import http.client
import json
import ssl
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from cluster import certificates, network
from cluster.errors import CommandFailed
from cluster.layout import SERVER, Layout

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_TIMEOUT_S = 60
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Kind:
    """Where objects of a kind are."""

    prefix: str
    plural: str
    is_namespaced: bool

    def path(self, namespace: str, name: str) -> str:
        place = f"/namespaces/{namespace}" if self.is_namespaced and namespace else ""
        return f"{self.prefix}{place}/{self.plural}" + (f"/{name}" if name else "")


@dataclass(frozen=True, slots=True)
class Query:
    """What `kubectl get KINDS [NAME] [--selector=..] [--field-selector=..]` asks for."""

    kinds: tuple[str, ...]
    name: str = ""
    namespace: str = "default"
    selector: str = ""
    fields: str = ""
    shows_managers: bool = False

    @classmethod
    def parse(cls, what: str, arguments: Sequence[str]) -> "Query | None":
        """From kubectl's words; None if they hold one that is not known here."""
        names, given = [], {"shows_managers": False, "namespace": "default"}
        known = {"--namespace": "namespace", "--selector": "selector", "--field-selector": "fields"}
        for word in arguments:
            option, _, value = word.partition("=")
            if option in known:
                given[known[option]] = value
            elif word == "--show-managed-fields":
                given["shows_managers"] = True
            elif word in {"-A", "--all-namespaces"}:
                given["namespace"] = ""
            elif word.startswith("-"):
                return None
            else:
                names.append(word)
        if len(names) > 1 or "/" in what:
            return None
        return cls(tuple(what.split(",")), *names, **given)  # type: ignore[arg-type]


class Api:
    """One connection to the server of a cluster of this machine; made anew when it breaks."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        pki = certificates.folder(layout)
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        self._kinds: dict[str, _Kind] = {}
        self._own = threading.local()
        self._made: list[http.client.HTTPSConnection] = []
        weakref.finalize(self, _close, self._made)

    def get(self, query: Query) -> Document:
        """One object, {} if there is none; without a name, a List of all kinds asked for.

        Raises:
            CommandFailed: the server refused, did not answer, or knows no such kind.
        """
        if query.name:
            (kind,) = query.kinds
            found = self._read(self._kind(kind).path(query.namespace, query.name)) or {}
            return _shown(found, query)
        words = {"labelSelector": query.selector, "fieldSelector": query.fields}
        asked = urlencode({key: value for key, value in words.items() if value})
        items: list[Document] = []
        for kind in query.kinds:
            path = self._kind(kind).path(query.namespace, "")
            listing = self._read(f"{path}?{asked}" if asked else path) or {}
            head = {
                "apiVersion": listing.get("apiVersion"),
                "kind": listing.get("kind", "").removesuffix("List"),
            }
            items += [_shown({**head, **item}, query) for item in listing.get("items", [])]
        return {"apiVersion": "v1", "kind": "List", "items": items}

    def _kind(self, word: str) -> _Kind:
        if word not in self._kinds:
            self._discover()
        if word not in self._kinds:
            raise CommandFailed(f"the server has no resource type {word!r}")
        return self._kinds[word]

    def _discover(self) -> None:
        found: dict[str, _Kind] = {}
        for root in ("/api", "/apis"):
            listing = self._read(root, accept=_DISCOVERY) or {}
            for group in listing.get("items", []):
                name = group["metadata"].get("name", "")
                version = group["versions"][0]
                prefix = f"/apis/{name}/{version['version']}" if name else "/api/v1"
                for item in version["resources"]:
                    kind = _Kind(prefix, item["resource"], item["scope"] == "Namespaced")
                    words = [item["resource"], item.get("singularResource", "")]
                    for word in (*words, *item.get("shortNames", [])):
                        found.setdefault(word, kind)
        self._kinds = found

    def _read(self, path: str, accept: str = "application/json") -> Document | None:
        """The answer to a GET, None where there is nothing."""
        for is_last in (False, True):
            connection = self._connection()
            try:
                connection.request("GET", path, headers={"Accept": accept})
                answer = connection.getresponse()
                status, body = answer.status, answer.read()
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_last:
                    raise CommandFailed(f"GET {path}: {error!r}") from error
        if status == http.client.NOT_FOUND:
            return None
        if status != http.client.OK:
            raise CommandFailed(f"GET {path}: {status} {body[:2000].decode(errors='replace')}")
        found: Document = json.loads(body)
        return found

    def _connection(self) -> http.client.HTTPSConnection:
        """This thread's, connected inside of the cluster's network."""
        made: http.client.HTTPSConnection | None = getattr(self._own, "connection", None)
        if made is None:
            place = urlsplit(SERVER)
            made = http.client.HTTPSConnection(
                str(place.hostname), place.port, timeout=_TIMEOUT_S, context=self._tls
            )
            self._own.connection = made
            self._made.append(made)
        if made.sock is None:
            with network.entered(self._layout):
                try:
                    made.connect()
                except OSError as error:
                    raise CommandFailed(f"the API server cannot be reached: {error}") from error
        return made


def _close(made: list[http.client.HTTPSConnection]) -> None:
    for connection in made:
        connection.close()


def _shown(item: Document, query: Query) -> Document:
    """As kubectl shows it: who manages which field only if asked for."""
    if not query.shows_managers and "metadata" in item:
        item["metadata"].pop("managedFields", None)
    return item
