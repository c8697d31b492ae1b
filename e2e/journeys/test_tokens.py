"""Admin tokens: the master key is replaced while engines serve, and nobody notices."""

from pathlib import Path

import pytest

from cluster.deployment import LABEL, Deployment, effective
from cluster.namespace import Namespace
from cluster.operator_process import OperatorProcess
from cluster.wait import until

NEW_KEY = "another-master-key-0123456789abcdef"
DIGESTS = "admin-token-sha256"


def accepted(namespace: Namespace) -> list[str]:
    """Digests of the tokens that pods take, the newest first."""
    (found,) = namespace.items("configmaps", f"--selector={LABEL}")
    text: str = found["data"][DIGESTS]
    return text.split()


def with_keys(operator: OperatorProcess, current: Path, previous: Path | None) -> None:
    operator.stop()
    operator.config["adminTokens"] = {
        "masterKeyFile": str(current),
        "previousMasterKeyFile": str(previous or operator.folder / "no-such-key"),
    }
    operator.start()
    operator.wait_ready()


@pytest.mark.timeout(900)
def test_a_master_key_is_replaced_without_a_gap_and_without_a_new_pod(
    deployment: Deployment, operator: OperatorProcess, namespace: Namespace
) -> None:
    deployment.apply()
    deployment.wait_ready()
    pods = deployment.pods()
    (first,) = accepted(namespace)
    old, new = operator.folder / "master-key", operator.folder / "new-key"
    new.write_text(NEW_KEY)

    with_keys(operator, new, old)
    deployment.edit({"scheduling": {"maxNumSeqs": 5}})
    assert effective(deployment.wait_ready(), "maxNumSeqs") == ("5", "Spec")
    both = until("both are accepted", lambda: two(accepted(namespace)), timeout_s=30)
    assert both[1] == first

    with_keys(operator, new, None)
    deployment.edit({"scheduling": {"maxNumSeqs": 6}})
    found = deployment.wait_ready()
    assert found["status"]["settingsRevision"] == {"wanted": 3, "applied": 3}
    until("only the new one is", lambda: accepted(namespace) == both[:1], timeout_s=30)
    assert deployment.pods() == pods


def two(digests: list[str]) -> list[str] | None:
    return digests if len(digests) == 2 else None
