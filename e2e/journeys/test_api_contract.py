"""The real API server keeps the rules that the operator relies on, and its fake is tested for."""

import sys

from cluster import host_volumes
from cluster.namespace import Namespace
from paceline_operator.testing import contract


def test_the_real_server_keeps_every_rule(crd: str, namespace: Namespace) -> None:
    assert crd
    rooms = ":".join(str(host_volumes.CHECKOUT / room) for room in host_volumes.SOURCES)
    command = [sys.executable, "-m", "paceline_operator.testing.contract", namespace.name]
    env = {"PYTHONPATH": rooms, "PYTHONSAFEPATH": "1"}
    done = namespace.cluster.run(command, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("holds ") == len(contract.RULES)
