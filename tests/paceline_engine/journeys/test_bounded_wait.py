"""The engine under a flood of one kind of prompts, and one prompt of the other kind: few steps.

Steps are counted, not seconds: how long one takes is the machine's business.
"""

import math
from pathlib import Path

import pytest
from numpy.random import default_rng

from paceline_engine.run.offline import OfflineEngine
from paceline_engine.run.runner import Runner
from paceline_engine.testing.runners import load_runner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BUDGET, SEATS = 256, 32
LANE = (BUDGET - SEATS) // 2
"""What either kind is sure of in a step beside so many decodes."""
SHORT, LONG = 24, 1200


@pytest.fixture(scope="module")
def runner(demo_folder: Path) -> Runner:
    return load_runner(
        demo_folder,
        num_kv_blocks=1600,
        max_num_seqs=SEATS,
        max_num_batched_tokens=BUDGET,
        prefix_caching=False,
    )


@pytest.mark.parametrize(
    ("probed", "flooded"), [(SHORT, LONG), (LONG, SHORT)], ids=["short", "long"]
)
def test_a_prompt_under_a_flood_of_the_other_kind_begins_within_few_steps(
    runner: Runner, probed: int, flooded: int
) -> None:
    rng = default_rng(3)

    def prompt(length: int) -> list[int]:
        return rng.integers(1000, 9000, length).tolist()

    asked = prompt(probed)
    alone = OfflineEngine(runner)
    first = alone.submit(asked, max_tokens=2)
    alone.run()

    session = OfflineEngine(runner)

    def flood(num_tokens: int) -> None:
        for _ in range(math.ceil(num_tokens / flooded)):
            session.submit(prompt(flooded), max_tokens=1)

    flood(16 * BUDGET)
    session.step()
    session.step()
    probe = session.submit(asked, max_tokens=2)
    steps = 0
    while not session.outputs[probe]:
        flood(BUDGET)
        session.step()
        steps += 1
    others = session.scheduler.num_waiting + session.scheduler.num_running - 1
    assert others * flooded > 4 * BUDGET, "the flood goes on"
    # Who has a seat may keep it for a step; then the prompt's own lane is its own.
    assert steps <= math.ceil(probed / LANE) + 3
    while probe not in session.finished:
        session.step()
    assert session.outputs[probe] == alone.outputs[first]
