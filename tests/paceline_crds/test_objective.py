"""Starting values of objectives and devices."""

import pytest

from paceline_crds import objective
from paceline_crds.objective import STARTING_VALUES, Objective
from paceline_crds.settings import EngineSettings

GB = 1_000_000_000


@pytest.mark.parametrize("chosen", list(Objective))
def test_every_objective_gives_valid_settings(chosen: Objective) -> None:
    settings = objective.start({}, chosen).settings
    for name, value in STARTING_VALUES[chosen].items():
        assert getattr(settings, name) == value


@pytest.mark.parametrize(
    ("memory", "tokens", "seqs"), [(None, 2048, 128), (24 * GB, 2048, 256), (80 * GB, 8192, 1024)]
)
def test_without_an_objective_the_device_decides(
    memory: int | None, tokens: int, seqs: int
) -> None:
    settings = objective.for_device(EngineSettings(), memory)
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, seqs)


def test_the_device_changes_nothing_that_was_set() -> None:
    settings = objective.start({"max_num_seqs": 7}, Objective.FIRST_TOKEN).settings
    on_device = objective.for_device(settings, 80 * GB)
    assert (on_device.max_num_batched_tokens, on_device.max_num_seqs) == (8192, 7)


def test_the_device_stays_below_a_boot_maximum() -> None:
    settings = EngineSettings(boot_max_num_seqs=200, max_num_seqs=100)
    assert objective.for_device(settings, 80 * GB).max_num_seqs == 100
    only_boot = objective.start({"boot_max_num_seqs": 600}, None).settings
    assert objective.for_device(only_boot, 80 * GB).max_num_seqs == 600
