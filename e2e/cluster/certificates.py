"""A certificate authority of the cluster's own, and a kubeconfig for each of its parts."""

import base64
import json
from pathlib import Path

from cluster.layout import GATEWAY, SERVER, Layout
from cluster.shell import run

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
API_NAMES = [
    "IP:127.0.0.1",
    f"IP:{GATEWAY}",
    "IP:10.96.0.1",
    "DNS:localhost",
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster.local",
]
CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
}


def folder(layout: Layout) -> Path:
    """Keys and certificates."""
    return layout.folder / "pki"


def make(layout: Layout, nodes: int) -> None:
    """Write all keys, certificates and kubeconfigs."""
    pki = folder(layout)
    pki.mkdir(mode=0o700)
    for authority in ("ca", "front-proxy-ca"):
        run(["openssl", "req", "-x509", *CURVE, "-subj", f"/CN=paceline-e2e-{authority}",
             "-keyout", pki / f"{authority}.key", "-out", pki / f"{authority}.crt"])  # fmt: skip
    key, public = pki / "service-accounts.key", pki / "service-accounts.pub"
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key])
    run(["openssl", "ec", "-in", key, "-pubout", "-out", public])
    _sign(pki, "ca", "apiserver", "/CN=kube-apiserver", ",".join(API_NAMES))
    _sign(pki, "front-proxy-ca", "front-proxy", "/CN=front-proxy", "DNS:front-proxy")
    for name, subject in CLIENTS.items():
        _sign(pki, "ca", name, subject, f"DNS:{name}")
        write_kubeconfig(layout, name)
    for number in range(1, nodes + 1):
        node = layout.node(number)
        subject = f"/O=system:nodes/CN=system:node:{node.name}"
        _sign(pki, "ca", node.name, subject, f"DNS:{node.name},IP:{node.address}")
        write_kubeconfig(layout, node.name)


def _sign(pki: Path, authority: str, name: str, subject: str, names: str) -> None:
    run(["openssl", "req", "-x509", *CURVE, "-subj", subject,
         "-CA", pki / f"{authority}.crt", "-CAkey", pki / f"{authority}.key",
         "-addext", f"subjectAltName={names}",
         "-addext", "basicConstraints=critical,CA:false",
         "-addext", "extendedKeyUsage=serverAuth,clientAuth",
         "-keyout", pki / f"{name}.key", "-out", pki / f"{name}.crt"])  # fmt: skip


def write_kubeconfig(layout: Layout, name: str) -> None:
    """Write <name>.kubeconfig; it carries its keys, so that it can be copied elsewhere."""
    pki = folder(layout)

    def data(file: str) -> str:
        return base64.b64encode((pki / file).read_bytes()).decode()

    cluster = {"server": SERVER, "certificate-authority-data": data("ca.crt")}
    user = {
        "client-certificate-data": data(f"{name}.crt"),
        "client-key-data": data(f"{name}.key"),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": layout.name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": layout.name, "context": {"cluster": layout.name, "user": name}}],
        "current-context": layout.name,
    }
    path = layout.folder / f"{name}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
