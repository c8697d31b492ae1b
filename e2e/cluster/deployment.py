"""The LLMDeployment of a journey: applied, changed, waited for, and asked, as a person would."""

import json
import sys
from collections.abc import Callable
from typing import Any

from cluster.client import Document
from cluster.namespace import Namespace, is_ready
from cluster.wait import until

NAME = "demo"
LABEL = "paceline.dev/deployment=demo"
CHILD_KINDS = (
    "deployments,configmaps,services,networkpolicies,poddisruptionbudgets,pods,replicasets"
)
HOPELESS = {"EngineCrashed", "InvalidSettings"}
"""Reasons with which waiting for Ready is in vain."""
ASK = """
import json, sys, time, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=90)
question = [{"role": "user", "content": "What is the capital of France?"}]
deadline = time.monotonic() + 30
while True:
    try:
        answer = client.chat.completions.create(
            model="demo", messages=question, max_tokens=8, temperature=0
        )
        break
    except openai.APIConnectionError:  # a node hears of ready pods a moment after we do
        if time.monotonic() > deadline:
            raise
        time.sleep(0.2)
print(json.dumps(answer.choices[0].message.content))
"""


def manifest(**spec: object) -> Document:
    """A deployment of the demo model, small enough to start in seconds."""
    return {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"uri": "file:///models/demo", "servedName": NAME},
            "maxModelLen": 512,
            "scheduling": {"maxNumSeqs": 4, "bootMaxNumSeqs": 8},
            "drain": {"preStopSeconds": 1, "shutdownTimeoutSeconds": 20},
            **spec,
        },
    }


class Deployment:
    """The LLMDeployment named demo of one namespace, and what the operator made of it.

    Attributes:
        told: the operator's last words, for a message about a failure.
        settle: waits until the operator has nothing left to do. Status is the first thing that it
            writes, so what it says may come before the children that it speaks of.
    """

    def __init__(
        self,
        namespace: Namespace,
        told: Callable[[], str] = str,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self.namespace = namespace
        self.told = told
        self.settle = settle

    def apply(self, **spec: object) -> None:
        """Apply `manifest(**spec)`."""
        self.namespace.apply(manifest(**spec))

    def edit(self, spec: Document) -> None:
        """Change fields of spec, as a person with kubectl does."""
        patch = json.dumps({"spec": spec})
        self.namespace.kubectl("patch", "llmdep", NAME, "--type=merge", f"--patch={patch}")

    def get(self, *arguments: str) -> Document:
        """The object as it is now."""
        return self.namespace.get("llmdep", NAME, *arguments)

    def condition(self, kind: str) -> Document:
        """One condition, {} before there is any."""
        found = self.get().get("status", {}).get("conditions", [])
        return next((item for item in found if item["type"] == kind), {})

    def wait_condition(
        self, kind: str, status: str, reason: str, timeout_s: float = 120
    ) -> Document:
        """Wait until a condition says that; returns it."""

        def probe() -> Document | None:
            found = self.condition(kind)
            is_it = (found.get("status"), found.get("reason")) == (status, reason)
            return found if is_it else None

        return until(
            f"condition {kind} is {status}/{reason}",
            probe,
            timeout_s=timeout_s,
            interval_s=0.5,
            seen=lambda: json.dumps(self.get().get("status")) + self.told(),
        )

    def wait_ready(self, timeout_s: float = 300) -> Document:
        """Wait until it is ready as its spec stands and all is written down, and return it."""
        until(
            "the deployment is ready",
            self._is_ready,
            timeout_s=timeout_s,
            interval_s=0.3,
            seen=lambda: json.dumps(self.get().get("status")) + self.told(),
        )
        self.settle()
        return self.get()

    def _is_ready(self) -> bool:
        found = self.get()
        generation = found.get("metadata", {}).get("generation")
        status = found.get("status", {})
        if status.get("observedGeneration") != generation:
            return False  # it speaks of the spec before
        conditions = status.get("conditions", [])
        assert not any(item["reason"] in HOPELESS for item in conditions), json.dumps(status)
        return any(
            item["type"] == "Ready"
            and item["status"] == "True"
            and item["observedGeneration"] == generation
            for item in conditions
        )

    def pod_items(self) -> list[Document]:
        """Its pods that are not about to end."""
        return [
            item
            for item in self.namespace.items("pods", f"--selector={LABEL}")
            if "deletionTimestamp" not in item["metadata"]
        ]

    def pods(self) -> dict[str, str]:
        """Name -> uid of its pods that are not about to end."""
        return {item["metadata"]["name"]: item["metadata"]["uid"] for item in self.pod_items()}

    def ready_pods(self) -> dict[str, str]:
        """The same of those that are ready."""
        return {
            item["metadata"]["name"]: item["metadata"]["uid"]
            for item in self.pod_items()
            if is_ready(item)
        }

    def children(self) -> dict[str, str]:
        """Name -> uid of the child Deployments."""
        return {
            item["metadata"]["name"]: item["metadata"]["uid"]
            for item in self.namespace.items("deployments", f"--selector={LABEL}")
        }

    def generations(self) -> dict[str, int]:
        """Name -> generation of the child Deployments: what a change of theirs would raise."""
        return {
            item["metadata"]["name"]: item["metadata"]["generation"]
            for item in self.namespace.items("deployments", f"--selector={LABEL}")
        }

    def wait_children(self, number: int, timeout_s: float = 120) -> None:
        """Wait until so many templates have a Deployment."""
        until(
            f"{number} templates have a Deployment",
            lambda: len(self.children()) == number,
            timeout_s=timeout_s,
            interval_s=0.5,
            seen=self.told,
        )

    def url(self) -> str:
        """Base of the OpenAI API at the Service's address."""
        service = self.namespace.get("service", NAME)["spec"]
        return f"http://{service['clusterIP']}:{service['ports'][0]['port']}/v1"

    def wait_budget(self, least: int | None) -> None:
        """Wait until the disruption budget asks for so many pods; None: until there is none.

        It is raised last of all, when pods serve already.
        """

        def present() -> int | None:
            found = self.namespace.get("poddisruptionbudget", NAME)
            number: int | None = found.get("spec", {}).get("minAvailable")
            return number

        until(
            f"the disruption budget is {least}",
            lambda: present() == least,
            timeout_s=60,
            seen=lambda: f"{present()}\n{self.told()}",
        )

    def ask(self) -> str:
        """What the model says to a question, by the openai SDK through the Service."""
        command = [sys.executable, "-c", ASK, self.url()]
        done = self.namespace.cluster.run(command, timeout_s=120)
        answer: str = json.loads(done.stdout.splitlines()[-1])
        return answer

    def delete(self) -> None:
        """Delete it and wait until nothing of it is left."""
        self.namespace.kubectl("delete", "llmdep", NAME, "--wait=true")
        until(
            "nothing is left",
            lambda: not self.namespace.items(CHILD_KINDS, f"--selector={LABEL}"),
            timeout_s=120,
            seen=self.namespace.describe,
        )


def effective(found: Document, name: str) -> tuple[Any, Any]:
    """Value and source of a setting in force."""
    item = next(item for item in found["status"]["effective"] if item["name"] == name)
    return item["value"], item["source"]
