"""Objects of the API server become checked values, or a reason why not."""

from typing import Any

from paceline_crds.source import Source
from paceline_operator.resources import parse
from paceline_operator.resources.overlay import DropReason
from paceline_operator.resources.parse import ConfigReason, Parsed, Refused


def document(spec: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {
            "name": "demo",
            "namespace": "models",
            "uid": "u1",
            "generation": 3,
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
            **rest.pop("metadata", {}),
        },
        "spec": {"model": {"uri": "demo"}, "replicas": 1, **spec},
        **rest,
    }


def overlay_of(value: str) -> dict[str, Any]:
    entry = {"name": "maxNumSeqs", "value": value, "base": "128", "baseSource": "Default"}
    return {"tuning": {"state": "Idle", "overlay": [entry]}, "fromTheFuture": 1}


def test_the_overlay_in_status_is_laid_over_spec() -> None:
    parsed = parse.parse(document({}, status=overlay_of("100")))
    assert isinstance(parsed, Parsed)
    assert parsed.wanted.settings.max_num_seqs == 100
    assert parsed.wanted.sources["max_num_seqs"] is Source.TUNER
    assert parsed.base.settings.max_num_seqs == 128


def test_an_edit_of_the_user_takes_the_overlay_away() -> None:
    edited = document({"scheduling": {"maxNumSeqs": 50}}, status=overlay_of("100"))
    parsed = parse.parse(edited)
    assert isinstance(parsed, Parsed)
    assert parsed.wanted.settings.max_num_seqs == 50
    assert [item.reason for item in parsed.wanted.dropped] == [DropReason.BASE_CHANGED]


def test_fields_of_a_newer_schema_are_ignored() -> None:
    assert isinstance(parse.parse(document({"fromTheFuture": {"a": 1}})), Parsed)


def test_a_wrong_spec_is_refused_with_the_field() -> None:
    refused = parse.parse(document({"replicas": -1}))
    assert isinstance(refused, Refused)
    assert refused.reason is ConfigReason.INVALID
    assert refused.message.startswith("spec.replicas must be an integer from 0 to 10000, got -1")
    assert refused.identity.generation == 3


def test_what_no_release_builds_is_refused_by_name() -> None:
    refused = parse.parse(document({"tensorParallelSize": 2}))
    assert isinstance(refused, Refused)
    assert refused.reason is ConfigReason.NOT_SUPPORTED
    assert "spec.tensorParallelSize is not supported" in refused.message


def test_the_install_that_takes_an_object_is_its_label() -> None:
    assert parse.identify(document({})).instance == "default"
    labelled = document({}, metadata={"labels": {"paceline.dev/operator": "blue"}})
    assert parse.identify(labelled).instance == "blue"


def test_what_of_status_is_not_read_back_cannot_lose_the_overlay() -> None:
    status = overlay_of("100") | {"effective": "odd", "conditions": [{"type": 1}]}
    parsed = parse.parse(document({}, status=status))
    assert isinstance(parsed, Parsed)
    assert parsed.wanted.settings.max_num_seqs == 100
    lost = parse.parse(document({}, status={"tuning": {"state": 1}}))
    assert isinstance(lost, Parsed)
    assert lost.deployment.status is None


def test_what_follows_from_spec_alone_is_worked_out_once() -> None:
    def base(spec: dict[str, Any], **rest: Any) -> Any:
        parsed = parse.parse(document(spec, **rest))
        assert isinstance(parsed, Parsed)
        return parsed.base

    first = base({"maxModelLen": 64})
    assert base({"maxModelLen": 64}, status=overlay_of("100")) is first
    assert base({"maxModelLen": 65}) is not first
