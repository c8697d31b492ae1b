"""Processes of a cluster: started apart from us, and ended only when they are surely its own.

A pid alone proves nothing, since the kernel gives it out again. Three things do: the start time of
the process beside its pid, the cluster's folder in its environment (containerd's shims inherit it,
and a crash between a start and its record cannot lose it), and membership in the cluster's cgroups.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.console import say
from cluster.layout import MARKER, Layout


@dataclass(frozen=True, slots=True)
class Record:
    """A process that was started, as the state file keeps it."""

    name: str
    pid: int
    started: int

    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        return start_time(self.pid) == self.started


def start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since the machine's boot; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, 0 if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class State:
    """The state file: how many nodes, which processes. Written at once after every change."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.nodes = 0
        self.records: list[Record] = []
        if layout.state_file.exists():
            with contextlib.suppress(json.JSONDecodeError):
                known = json.loads(layout.state_file.read_text())
                self.nodes = known["nodes"]
                self.records = [Record(**record) for record in known["processes"]]

    def save(self) -> None:
        """Write it so that a crash leaves the old or the new one."""
        text = json.dumps(
            {
                "nodes": self.nodes,
                "processes": [
                    {"name": r.name, "pid": r.pid, "started": r.started} for r in self.records
                ],
            },
            indent=1,
        )
        new = self.layout.state_file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.layout.state_file)

    def start(
        self,
        name: str,
        argv: Iterable[str | Path],
    ) -> None:
        """Start a program in the cluster's network, apart from this process and its terminal."""
        command = [*inside(self.layout), *map(str, argv)]
        log = self.layout.folder / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, MARKER: str(self.layout.folder)},
                cwd=self.layout.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = start_time(process.pid)
        process.returncode = 0  # not ours to wait for: it outlives this command
        if started is not None:
            self.records.append(Record(name, process.pid, started))
            self.save()

    def stop(self, name: str) -> None:
        """End a program and forget it, so that it is not missed."""
        end(self.named(name), 10)
        self.records = [record for record in self.records if record.name != name]
        self.save()

    def dead(self) -> list[str]:
        """Names of processes that have ended."""
        return [record.name for record in self.records if not record.is_alive()]

    def named(self, prefix: str) -> list[int]:
        """Living processes whose name begins so."""
        return [r.pid for r in self.records if r.name.startswith(prefix) and r.is_alive()]

    def cpu_seconds(self) -> dict[str, float]:
        """Name -> processor time that each living process has used so far."""
        return {r.name: cpu_seconds(r.pid) for r in self.records if r.is_alive()}


def inside(layout: Layout) -> list[str]:
    """What to put before a command so that it runs in the cluster's network.

    `ip netns exec` would not do: it mounts a fresh /sys, which hides the cgroups from the kubelet.
    """
    return ["nice", "-n", "10", "nsenter", f"--net={layout.netns_path}"]


def marked(layout: Layout) -> list[int]:
    """Processes that carry the cluster's folder in their environment."""
    wanted = f"{MARKER}={layout.folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end(pids: Iterable[int], grace_s: float) -> None:
    """Ask processes to end, wait, and force those that stay.

    Each is held by a descriptor from the first moment, so that a pid which the kernel gives out
    again meanwhile is never signalled.
    """
    held: dict[int, int] = {}
    for pid in set(pids):
        with contextlib.suppress(ProcessLookupError):
            held[os.pidfd_open(pid)] = pid
    try:
        if grace_s > 0:
            _signal(held, signal.SIGTERM)
            _wait(held, grace_s)
        if held:
            _signal(held, signal.SIGKILL)
            _wait(held, 10)
        if held:
            say(f"processes that do not end: {sorted(held.values())}")
    finally:
        for descriptor in held:
            os.close(descriptor)


def _signal(held: Mapping[int, int], which: signal.Signals) -> None:
    for descriptor in held:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, which)


def _wait(held: dict[int, int], timeout_s: float) -> None:
    """Wait until all have ended; take those that have out of `held`."""
    deadline = time.monotonic() + timeout_s
    poller = select.poll()
    for descriptor in held:
        poller.register(descriptor, select.POLLIN)
    while held:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        for descriptor, _ in poller.poll(left * 1000):
            poller.unregister(descriptor)
            pid = held.pop(descriptor)
            os.close(descriptor)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
