"""The operator's process over HTTP: what a new deployment costs it in requests and looks."""

import asyncio

import pytest

from paceline_operator.testing import many


@pytest.mark.slow
def test_a_new_deployment_costs_six_writes_and_no_look_for_what_others_write() -> None:
    cost = asyncio.run(many.measure(8))
    assert cost.writes_each == {
        "PUT llmdeployments": 1,
        "POST events": 1,
        "PATCH services": 1,
        "PATCH networkpolicies": 1,
        "PATCH deployments": 1,
        "PATCH configmaps": 1,
    }
    assert cost.events_each == 8, "the Deployment controller's two among them"
    assert cost.looks_each < 3, "one to make everything, one to see it"
