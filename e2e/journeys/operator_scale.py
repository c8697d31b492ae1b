"""Creates and counts many LLMDeployments, in the cluster's network: see test_operator_scale."""

import asyncio
import contextlib
import json
import sys
import time

from paceline_operator.resources import objects
from paceline_operator.shell import kinds
from paceline_operator.shell.cluster import Cluster, Object
from paceline_operator.shell.errors import ApiRefused, ApiUnreachable
from paceline_operator.shell.session import Session

AT_ONCE = 32
POLL_S = 1.0


async def create(cluster: Cluster, namespace: str, number: int) -> None:
    """Create them, each with a spec of its own: what is worked out for one serves no other."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(index: int) -> None:
        body = {
            "apiVersion": kinds.LLM_DEPLOYMENT.api_version,
            "kind": kinds.LLM_DEPLOYMENT.name,
            "metadata": {"name": f"many-{index:04d}", "namespace": namespace},
            "spec": {"replicas": 0, "model": {"uri": "demo"}, "maxModelLen": 1024 + index},
        }
        async with slots:
            await patiently(cluster, namespace, body)

    await asyncio.gather(*(one(index) for index in range(number)))


async def patiently(cluster: Cluster, namespace: str, body: Object) -> None:
    """Create it, also if a server that has much to do does not answer in time."""
    while True:
        try:
            path = kinds.LLM_DEPLOYMENT.path(namespace)
            await cluster.session.request("POST", path, body=body)
        except ApiUnreachable:
            continue
        except ApiRefused as refused:
            if refused.reason != "AlreadyExists":
                raise
        return


async def num_config_maps(cluster: Cluster, namespace: str) -> int:
    """How many there are, from a page of one: the last child is a ConfigMap.

    Whole lists of all would keep the server as busy as what is measured.
    """
    path = kinds.CHILDREN["ConfigMap"].path(namespace)
    page = await cluster.session.request("GET", path, params={"limit": "1"})
    return len(objects.items(page, "items")) + objects.whole(page, "metadata", "remainingItemCount")


async def is_done(cluster: Cluster, namespace: str, number: int) -> bool:
    """Whether each has its children and a status that says so."""
    listing = await cluster.list_all(kinds.LLM_DEPLOYMENT, namespace)
    ready = sum(objects.condition(item, "Ready").get("status") == "True" for item in listing.items)
    if ready < number:
        return False
    for kind in ("Deployment", "ConfigMap", "Service", "NetworkPolicy"):
        selector = "paceline.dev/deployment"
        found = await cluster.list_all(kinds.CHILDREN[kind], namespace, selector)
        if len(found.items) < number:
            return False
    return True


async def main(namespace: str, number: int, limit_s: float) -> None:
    cluster = Cluster(Session())
    began = time.monotonic()
    await create(cluster, namespace, number)
    created = time.monotonic()
    while True:
        with contextlib.suppress(ApiUnreachable):
            there = await num_config_maps(cluster, namespace)
            if there >= number and await is_done(cluster, namespace, number):
                break
        if time.monotonic() - began > limit_s:
            raise SystemExit(f"not done after {limit_s} s")
        await asyncio.sleep(POLL_S)
    done = time.monotonic()
    await cluster.session.close()
    found = {
        "created_s": round(created - began, 1),
        "done_s": round(done - began, 1),
        "client_cpu_s": round(time.process_time(), 1),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
