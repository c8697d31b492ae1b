"""A real Prometheus as a process, for tests."""

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml


def free_address() -> str:
    """`host:port` of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def prometheus(
    program: str, page_of: str, folder: Path, labels: Mapping[str, str], *, interval: str = "1s"
) -> Iterator[str]:
    """A Prometheus that scrapes one engine in two jobs: everything is there twice.

    Args:
        program: its path.
        page_of: base URL of the engine.
        folder: for its files.
        labels: of every series.
        interval: between scrapes.

    Yields:
        Its URL.
    """
    address = free_address()
    target = {"targets": [page_of.removeprefix("http://")], "labels": dict(labels)}
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [
            {"job_name": name, "static_configs": [target]} for name in ("one", "two")
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [program, f"--config.file={folder}/prometheus.yaml", "--log.level=warn"]
    command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - a test's own
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(timeout=30)
