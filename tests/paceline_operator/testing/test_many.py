"""The operator's process over HTTP: what a new deployment costs it in requests and looks."""

import asyncio

import pytest

from paceline_operator.testing import many


@pytest.mark.slow
def test_a_new_deployment_costs_seven_writes_and_no_look_for_what_others_write() -> None:
    cost = asyncio.run(many.measure(8))
    assert cost.writes_each == {
        "PUT llmdeployments": 2,
        "POST events": 1,
        "PATCH services": 1,
        "PATCH networkpolicies": 1,
        "PATCH deployments": 1,
        "PATCH configmaps": 1,
    }
    assert cost.events_each == 9, "the Deployment controller's two among them"
    assert cost.looks_each < 4, "one for children, one to say that they are there, one to see it"
