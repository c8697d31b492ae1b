"""Every rule of the CRD refuses what it is there for, with its message, on a laptop as well."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_crds import crd, llmdeployment, spec
from paceline_crds.errors import InvalidManifest
from paceline_crds.knob import ChangeClass, Knob
from paceline_crds.settings import knobs

REFUSED = yaml.safe_load((Path(__file__).parent / "refused.yaml").read_text(encoding="utf-8"))


def document(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": case.get("name", "demo")},
        "spec": {"model": {"uri": "demo"}, **case.get("spec", {})},
    }


DEFINITION = crd.definition()


def rules_in(node: Any) -> list[dict[str, str]]:
    if isinstance(node, list):
        return [rule for item in node for rule in rules_in(item)]
    if not isinstance(node, dict):
        return []
    found = list(node.get("x-kubernetes-validations", []))
    return found + [rule for child in node.values() for rule in rules_in(child)]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case.get("spec", case.get("name"))))
def test_a_broken_rule_is_the_only_problem_told(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidManifest) as refusal:
        llmdeployment.parse(document(case))
    assert len(refusal.value.problems) == 1
    assert case["message"] in refusal.value.problems[0]


def test_every_rule_has_a_manifest_that_breaks_it() -> None:
    messages = {rule["message"] for rule in rules_in(DEFINITION)}
    shown = {case["message"] for case in REFUSED}
    assert {message for message in messages if not message.startswith(tuple(shown))} == set()


def test_every_message_says_what_to_do() -> None:
    for rule in rules_in(DEFINITION):
        assert ";" in rule["message"], rule


def test_a_setting_that_never_changes_gets_a_transition_rule() -> None:
    assert spec.immutable_rules(knobs()) == ()
    frozen = Knob(change=ChangeClass.IMMUTABLE, spec="kvCache.dtype")
    (rule,) = spec.immutable_rules({"kv_cache_dtype": frozen})
    assert rule.cel == (
        "(has(self.kvCache) && has(self.kvCache.dtype)) == "
        "(has(oldSelf.kvCache) && has(oldSelf.kvCache.dtype)) && "
        "(!(has(self.kvCache) && has(self.kvCache.dtype)) || "
        "!(has(oldSelf.kvCache) && has(oldSelf.kvCache.dtype)) || "
        "self.kvCache.dtype == oldSelf.kvCache.dtype)"
    )
    assert "immutable" in rule.message
