"""A real Prometheus as a process, for tests."""

import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

Target = dict[str, Any]
"""An entry of `static_configs`."""


def free_address() -> str:
    """`host:port` of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def target(page_of: str, **labels: str) -> Target:
    """What has a page below this base URL; the labels are those of all its series."""
    return {"targets": [page_of.removeprefix("http://")], "labels": labels}


@contextmanager
def prometheus(
    program: str,
    jobs: Mapping[str, Sequence[Target]],
    folder: Path,
    *,
    interval: str = "1s",
    address: str = "",
) -> Iterator[str]:
    """A Prometheus that scrapes `/metrics` of some targets.

    Args:
        program: its path.
        jobs: name -> targets; what stands in two jobs is there twice.
        folder: for its files.
        interval: between scrapes.
        address: where it listens, a free one of loopback if it is left out.

    Yields:
        Its URL.
    """
    address = address or free_address()
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [
            {"job_name": name, "static_configs": list(targets)} for name, targets in jobs.items()
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
