"""Every example can be applied as it is."""

from pathlib import Path

import pytest

from paceline_crds import generate, llmdeployment, resolve, support

EXAMPLES = sorted((generate.ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_loads_and_means_settings_that_hold(path: Path) -> None:
    deployment = llmdeployment.loads(path.read_text(encoding="utf-8"))
    assert support.not_supported(deployment.spec) == []
    settings = resolve.settings_of(deployment.spec).booted()
    assert settings.boot_max_num_seqs is not None
    assert settings.max_num_seqs <= settings.boot_max_num_seqs


def test_the_examples_are_there() -> None:
    assert {"chat.yaml", "throughput.yaml", "priority.yaml"} <= {path.name for path in EXAMPLES}
