"""A real Prometheus in the cluster's network that scrapes engines as their PodMonitor says.

Debian's knows no discovery of pods, so it is told them through a file.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from cluster import debian
from cluster.client import Cluster, Document
from cluster.wait import until

PACKAGE = {"prometheus": "prometheus"}


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs.

    Attributes:
        url: its address in the cluster's network.
        targets: the file of what it scrapes; it reads a new one at once.
    """

    cluster: Cluster
    url: str
    targets: Path

    def scrape(self, pods: Iterable[Document]) -> None:
        """Scrape these pods of engines from now on, under the labels that a PodMonitor gives."""
        found = [
            {
                "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
                "labels": {
                    "namespace": pod["metadata"]["namespace"],
                    "pod": pod["metadata"]["name"],
                    "container": container["name"],
                },
            }
            for pod in pods
            for container in pod["spec"]["containers"]
            for port in container["ports"]
            if port["name"] == "http"
        ]
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.rename(self.targets)

    def value(self, query: str) -> float | None:
        """What a query gives now, None without a series; several are an error of the test."""
        command = ["curl", "-sS", "-m", "5", f"{self.url}/api/v1/query?query={quote(query)}"]
        done = self.cluster.run(command, check=False)
        if done.returncode != 0:
            return None
        found = json.loads(done.stdout)
        assert found["status"] == "success", done.stdout
        series = found["data"]["result"]
        assert len(series) <= 1, done.stdout
        return float(series[0]["value"][1]) if series else None

    def wait(self, query: str) -> float:
        """The value of a query, once it has been scraped."""
        return until(
            f"{query} is known",
            lambda: (found,) if (found := self.value(query)) is not None else None,
            timeout_s=60,
        )[0]

    def wait_for(self, query: str, expected: float) -> None:
        """Wait until a query gives a value."""
        until(
            f"{query} is {expected:g}",
            lambda: self.value(query) == expected,
            timeout_s=60,
            seen=lambda: str(self.value(query)),
        )


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, interval: str) -> Iterator[Prometheus]:
    """Have one run during the block.

    Args:
        cluster: of this machine: its pods' addresses have to be reached.
        folder: for its configuration, data and log.
        interval: between scrapes, as `spec.monitoring.podMonitor.interval` has it.
    """
    debian.require(PACKAGE)
    address = f"127.0.0.1:{19000 + os.getpid() % 1000}"
    made = Prometheus(cluster, f"http://{address}", folder / "targets.json")
    made.scrape(())
    job = {
        "job_name": "engines",
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "file_sd_configs": [{"files": [str(made.targets)]}],
    }
    file, log = folder / "prometheus.json", folder / "prometheus.log"
    file.write_text(json.dumps({"scrape_configs": [job]}))  # JSON is YAML
    command = ["prometheus", f"--config.file={file}", "--log.level=warn"]
    command += [f"--storage.tsdb.path={folder}/prometheus", f"--web.listen-address={address}"]
    with cluster.process(command, log):
        until(
            "Prometheus is ready",
            lambda: cluster.run(["curl", "-fsS", f"{made.url}/-/ready"], check=False).stdout,
            timeout_s=60,
            interval_s=0.5,
            seen=log.read_text,
        )
        yield made
