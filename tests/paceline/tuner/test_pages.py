"""An engine's page for the tuner is the same from its text and from its snapshot."""

from numpy.random import default_rng

from paceline.tuner import pages
from paceline_crds import metrics
from paceline_engine.serve import metrics as exporter
from paceline_engine.serve.metrics import ServingFacts
from paceline_engine.testing.sim_loads import scattered, small_simulator
from paceline_operator.decide.tuning.terms import PROCESS_START, SERIES


def test_a_page_is_the_same_from_text_and_from_a_snapshot() -> None:
    sim = small_simulator(scattered(default_rng(1), 20), slo_ttft_ms=500)
    sim.run()
    snapshot = sim.snapshot()
    facts = ServingFacts(model_name="m", startup_seconds={})
    read = dict(pages.of_text(exporter.render(snapshot, facts).decode()))
    made = dict(pages.of_snapshot(snapshot, 5.0))
    assert made.pop(PROCESS_START) == {(): 5.0}
    assert read.pop(PROCESS_START)
    made = {name: series for name, series in made.items() if series}
    assert read == made
    assert set(read) <= SERIES
    assert (
        read[metrics.SUCCESS][("finished_reason", "stop"),]
        + read[metrics.SUCCESS][("finished_reason", "length"),]
        == 20
    )
