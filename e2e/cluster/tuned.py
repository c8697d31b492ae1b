"""An LLMDeployment whose tuner a journey follows: its manifest as a file, and what status tells."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.client import Document
from cluster.deployment import NAME, Deployment, manifest
from cluster.host_volumes import CHECKOUT
from cluster.wait import until

CLOSED_LOOP = CHECKOUT / "e2e" / "journeys" / "closed_loop.py"


class Tuned:
    """One deployment that is applied from a file, as GitOps does it.

    Attributes:
        deployment: the same object as other journeys use it.
    """

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self.deployment = deployment
        self._file = folder / "manifest.json"
        self._folder = folder

    def apply(self, **spec: object) -> None:
        """Apply `manifest(**spec)` by its file."""
        document = manifest(**spec)
        document["metadata"]["namespace"] = self.deployment.namespace.name
        self._file.write_text(json.dumps(document))
        self.deployment.namespace.kubectl("apply", "-f", str(self._file))

    def assert_no_diff(self) -> None:
        """`kubectl diff` of the file that was applied shows nothing, and nobody wrote spec."""
        self.deployment.namespace.kubectl("diff", "-f", str(self._file))

    def status(self) -> Document:
        """`status.tuning` as it is now."""
        found: Document = self.deployment.get().get("status", {}).get("tuning", {})
        return found

    def wait(
        self, what: str, holds: Callable[[Document], object], timeout_s: float = 120
    ) -> Document:
        """Wait until `status.tuning` fulfils something; returns it."""

        def probe() -> Document | None:
            found = self.status()
            return found if holds(found) else None

        return until(what, probe, timeout_s=timeout_s, interval_s=0.5, seen=self.told)

    def told(self) -> str:
        """What its tuner says and the operator has written, for a message about a failure."""
        return json.dumps(self.status(), indent=1) + self.deployment.told()

    def wait_window(self) -> Document:
        """Wait until one more window has been looked at, and what followed from it is told."""
        before = self.status()["seenUntil"]
        return self.wait("one more window was read", lambda found: found["seenUntil"] > before)

    def restarts(self) -> dict[str, tuple[str, int]]:
        """Name of each pod -> its uid and how often its container began anew."""
        return {
            item["metadata"]["name"]: (
                item["metadata"]["uid"],
                sum(each["restartCount"] for each in item["status"]["containerStatuses"]),
            )
            for item in self.deployment.pod_items()
        }

    def annotate(self, *words: str) -> None:
        """Set annotations (`name=value`) or take them away (`name-`), as a person does."""
        self.deployment.namespace.kubectl("annotate", "--overwrite", "llmdep", NAME, *words)

    def events(self, reason: str) -> int:
        """How often an event with this reason was told."""
        found = self.deployment.namespace.items("events", f"--field-selector=reason={reason}")
        return sum(item.get("count") or 1 for item in found)

    def describe(self) -> str:
        """What `kubectl describe` tells."""
        return self.deployment.namespace.kubectl("describe", "llmdep", NAME)

    @contextlib.contextmanager
    def load(
        self, users: int, words: int, lengths: tuple[int, ...], prompt: int = 16
    ) -> Iterator[None]:
        """Have users ask during the block, each as soon as it has its answer.

        Afterwards every request has to have been answered.

        Args:
            users: how many.
            words: different tokens that answers are drawn from: of one, every draft holds.
            lengths: tokens of answers, in turn, whoever asks.
            prompt: tokens of a prompt.
        """
        stop, report = self._folder / "load.stop", self._folder / "load.json"
        stop.unlink(missing_ok=True)
        shape = [str(users), str(words), str(prompt), ",".join(map(str, lengths))]
        arguments = [self.deployment.url(), *shape, str(stop), str(report)]
        cluster = self.deployment.namespace.cluster
        command = [sys.executable, str(CLOSED_LOOP), *arguments]
        with cluster.process(command, self._folder / "load.log") as process:
            yield
            stop.touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        assert set(json.loads(report.read_text())) == {"answered"}, report.read_text()
