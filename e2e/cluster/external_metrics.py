"""A server of external metrics, as KEDA or an adapter over Prometheus is one: values set by hand.

The API server aggregates it, and the real HPA controller asks it. Run it in the cluster's network:
`external_metrics.py ADDRESS PORT CERTIFICATE KEY VALUES`, the last a JSON file {name: number}
that is read at each request.
"""

import json
import ssl
import sys
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

GROUP = "external.metrics.k8s.io"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"


def answer(path: str, values: Path) -> dict[str, Any] | None:
    """The body for a path, None if there is nothing."""
    parts = path.partition("?")[0].strip("/").split("/")
    if parts[:3] != ["apis", GROUP, VERSION]:
        return None
    if len(parts) == 3:
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION,
                "resources": []}  # fmt: skip
    known = json.loads(values.read_text())
    if len(parts) != 6 or parts[5] not in known:
        return None
    item = {
        "metricName": parts[5],
        "metricLabels": {},
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": str(known[parts[5]]),
    }
    return {"kind": "ExternalMetricValueList", "apiVersion": API_VERSION, "metadata": {},
            "items": [item]}  # fmt: skip


def serve(address: str, port: int, certificate: str, key: str, values: Path) -> None:
    """Answer until the process is ended."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answer(self.path, values)
            body = json.dumps(found or {"kind": "Status", "code": 404}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer((address, port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


def manifests(namespace: str, address: str, port: int) -> list[dict[str, Any]]:
    """A Service before that address, and the APIService with which the API server asks it."""
    metadata = {"name": "external-metrics", "namespace": namespace}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "external-metrics"}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{VERSION}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": VERSION,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {**metadata, "port": 443},
            },
        },
    ]


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5]))
