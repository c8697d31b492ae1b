"""A page of /metrics as numbers, and what promtool says of it."""

import subprocess
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]

_MEANT = (
    "metric names should not contain ':'",
    'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix',
)


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """One scrape.

    Attributes:
        text: as it was sent.
        samples: (name, sorted labels) -> value.
    """

    text: str
    samples: dict[tuple[str, Labels], float] = field(init=False)

    def __post_init__(self) -> None:
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }
        object.__setattr__(self, "samples", samples)

    def total(self, name: str, /, **labels: str) -> float:
        """The sum of the samples of a name that carry these labels; 0 if there is none."""
        return sum(
            value
            for (found, own), value in self.samples.items()
            if found == name and set(labels.items()) <= set(own)
        )

    def has(self, name: str, /, **labels: str) -> bool:
        """Whether there is such a sample."""
        return any(found == name and set(labels.items()) <= set(own) for found, own in self.samples)


def complaints(text: str, promtool: str) -> list[str]:
    """What `promtool check metrics` says, less the two things that are meant.

    It always complains about colons in names; if it does not, it has not read the page.
    """
    command = [promtool, "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603 - a program that the caller found
    said = (done.stdout + done.stderr).splitlines()
    if not any(line.endswith(_MEANT[0]) for line in said):
        return ["promtool did not read the page", *said]
    return [line for line in said if not line.endswith(_MEANT)]
