"""Command lines of what is there once per cluster."""

from pathlib import Path

from cluster import certificates
from cluster.binaries import program
from cluster.layout import GATEWAY, POD_NETWORK, SERVICE_NETWORK, Layout

COREFILE = """\
.:53 {{
  bind {gateway}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 5
  }}
}}
"""


def etcd() -> list[str | Path]:
    """Without fsync: nobody needs the data after a crash of the machine."""
    return [
        "etcd",
        "--data-dir=etcd",
        "--unsafe-no-fsync",
        "--log-level=warn",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=default=http://127.0.0.1:2380",
    ]


def api_server(layout: Layout) -> list[str | Path]:
    """With what aggregated APIs (external metrics for an HPA) need: the front proxy's flags.

    Its collector runs a quarter as often as Go's default has it: of a server with so few objects
    each run is soon followed by the next, and they were a sixth of its processor time.
    """
    pki = certificates.folder(layout)
    return [
        "env",
        "GOGC=400",
        "GOMEMLIMIT=3GiB",
        program("kube-apiserver"),
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        f"--advertise-address={GATEWAY}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-account-key-file={pki}/service-accounts.pub",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        "--profiling=false",
    ]


def controller_manager(layout: Layout) -> list[str | Path]:
    """Fast enough for a thousand objects (its default writes 20 a second) and for an HPA."""
    pki = certificates.folder(layout)
    return [
        program("kube-controller-manager"),
        f"--kubeconfig={layout.folder}/controller-manager.kubeconfig",
        f"--service-account-private-key-file={pki}/service-accounts.key",
        f"--root-ca-file={pki}/ca.crt",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--horizontal-pod-autoscaler-sync-period=2s",
    ]


def scheduler(layout: Layout) -> list[str | Path]:
    """The real one: it counts fake GPUs too."""
    return [
        program("kube-scheduler"),
        f"--kubeconfig={layout.folder}/scheduler.kubeconfig",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]


def proxy(layout: Layout) -> list[str | Path]:
    """One for all nodes, which share the network namespace.

    With masquerading: pods sit on one bridge, and an answer must pass the rules that changed the
    request's address even where the kernel does not show bridged packets to iptables.
    """
    return [
        program("kube-proxy"),
        f"--kubeconfig={layout.folder}/proxy.kubeconfig",
        "--proxy-mode=iptables",
        "--masquerade-all",
        f"--cluster-cidr={POD_NETWORK}",
        f"--hostname-override={layout.node(1).name}",
        "--bind-address=127.0.0.1",
        "--healthz-bind-address=127.0.0.1:10256",
        "--iptables-min-sync-period=100ms",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ]


def dns(layout: Layout) -> list[str | Path]:
    """CoreDNS on the gateway's address, which the kubelets give to their pods."""
    corefile = layout.folder / "Corefile"
    kubeconfig = layout.folder / "admin.kubeconfig"
    corefile.write_text(COREFILE.format(gateway=GATEWAY, kubeconfig=kubeconfig))
    return [program("coredns"), "-conf", corefile]
