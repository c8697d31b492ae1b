"""The API server in memory keeps the rules that the real one is checked for in the journeys."""

import asyncio

import pytest

from paceline_operator.shell.cluster import Cluster
from paceline_operator.testing import contract
from paceline_operator.testing.api import NAMESPACE, FakeApi
from paceline_operator.testing.contract import Rule
from paceline_operator.testing.store import Store


@pytest.mark.parametrize("rule", contract.RULES, ids=lambda rule: rule.__name__)
def test_the_server_in_memory_keeps_the_rule(rule: Rule) -> None:
    cluster = Cluster(FakeApi(Store(), lambda: contract.NOW))
    asyncio.run(rule(cluster, NAMESPACE))
