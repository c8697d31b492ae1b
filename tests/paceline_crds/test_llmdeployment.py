"""A manifest is read strictly, and every refusal says what to do."""

import re

import pytest

from paceline_crds import llmdeployment
from paceline_crds.errors import InvalidManifest

MINIMAL = """
apiVersion: paceline.dev/v1alpha1
kind: LLMDeployment
metadata:
  name: demo
spec:
  model:
    uri: demo
"""


def problems_of(text: str) -> str:
    with pytest.raises(InvalidManifest) as refusal:
        llmdeployment.loads(text)
    return str(refusal.value)


def with_spec(lines: str) -> str:
    return MINIMAL + "".join(f"  {line}\n" for line in lines.splitlines())


def test_the_minimal_manifest_has_one_replica_and_pins_nothing() -> None:
    spec = llmdeployment.loads(MINIMAL).spec
    assert spec.replicas == 1
    assert spec.model_fields_set == {"model"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "scheduling: {maxNumSeqs: 0}",
            (
                "spec.scheduling.maxNumSeqs must be an integer from 1 to 65536, got 0; change "
                "spec.scheduling.maxNumSeqs or remove it"
            ),
        ),
        (
            'scheduling: {maxNumSeqs: "8"}',
            (
                'spec.scheduling.maxNumSeqs must be an integer from 1 to 65536, got "8"; change '
                "spec.scheduling.maxNumSeqs or remove it"
            ),
        ),
        (
            "scheduling: {maxNumSeqs: true}",
            (
                "spec.scheduling.maxNumSeqs must be an integer from 1 to 65536, got true; change "
                "spec.scheduling.maxNumSeqs or remove it"
            ),
        ),
        (
            "scheduling: {maxNumSeq: 8}",
            "spec.scheduling.maxNumSeq is unknown; did you mean maxNumSeqs? Rename or remove it",
        ),
        (
            "tuning: {mode: Off}",
            (
                "spec.tuning.mode must be one of Off, Observe, Propose, Auto, got false; YAML "
                "reads On, Off, Yes and No as booleans: put the word in quotes"
            ),
        ),
        (
            "slo: {ttft: {target: 1s, attainment: 0.95}}",
            (
                "spec.slo.ttft.attainment must be a decimal from 0.5 to 0.9999 as text, such as "
                '"0.99", got 0.95; put the number in quotes: "0.95"'
            ),
        ),
        (
            "slo: {itl: {attainment: '0.95'}}",
            "spec.slo.itl.target is missing; add it: a duration such as 500ms, 2s or 1h30m",
        ),
        (
            "scheduling: {queue: {timeout: 500ms}}",
            (
                "spec.scheduling.queue.timeout must be a duration in whole seconds such as 2s or "
                '1h30m, got "500ms"; change spec.scheduling.queue.timeout or remove it'
            ),
        ),
        (
            "resources: {requests: {cpu: 0.5}}",
            (
                "spec.resources.requests.cpu must be a quantity such as 500m, 2 or 16Gi, got 0.5; "
                'put the number in quotes: "0.5"'
            ),
        ),
        (
            "env: [{name: A, value: x}, {name: A, value: y}]",
            "spec.env: has two entries with the same name (A); remove one",
        ),
    ],
)
def test_a_wrong_field_is_refused_with_its_path_and_what_to_do(lines: str, message: str) -> None:
    assert problems_of(with_spec(lines)) == message


def test_a_null_is_the_same_as_absent() -> None:
    spec = llmdeployment.loads(with_spec("scheduling:\nkvCache: {dtype:}")).spec
    assert spec.scheduling is None
    assert spec.kv_cache is not None
    assert spec.kv_cache.model_fields_set == set()


def test_every_problem_is_told_at_once() -> None:
    text = problems_of(with_spec("replicas: -1\nobjective: Fast\nnodes: 3"))
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "one LLMDeployment was expected, got 0 documents; keep one"),
        (MINIMAL + "---" + MINIMAL, "one LLMDeployment was expected, got 2 documents; keep one"),
        ("[]", "an LLMDeployment (a map) was expected, got a list"),
        ("a: [", "line 1, column 5: this is no YAML: "),
        ("\ta: 1", "any token; indent with spaces, YAML takes no tabs"),
        ("a: [1\nb: 2", "a flow sequence that begins at line 1, column 4; put a comma"),
        ("a: b: c", "put a text that holds ': ' in quotes"),
        ("a: 1\n- b", "give the entries of one level the same indentation"),
        ("kind: Pod", "kind must be LLMDeployment, got 'Pod'; write kind: LLMDeployment"),
        (MINIMAL.replace("v1alpha1", "v2"), "apiVersion must be paceline.dev/v1alpha1, got"),
        (MINIMAL + "    uri: demo\n", "line 9: uri is given twice; remove one"),
        (MINIMAL.replace("name: demo", "name: " + "a" * 53), "metadata.name must be at most 52"),
        (MINIMAL.replace("name: demo", "name: Demo"), "metadata.name must be at most 52"),
        (MINIMAL.replace("name: demo", "nmae: demo"), "metadata.nmae is unknown; did you mean"),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, message: str) -> None:
    assert message in problems_of(text)


def test_an_object_of_a_newer_schema_can_be_read_without_its_new_fields() -> None:
    document = {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "demo", "uid": "1", "managedFields": [{"manager": "x"}]},
        "spec": {"model": {"uri": "demo"}, "fromTheFuture": 1},
    }
    assert llmdeployment.parse(document, strict=False).spec.model.uri == "demo"
    with pytest.raises(InvalidManifest, match=r"spec\.fromTheFuture is unknown"):
        llmdeployment.parse(document)


def test_times_of_day_and_quantities_are_read_as_kubectl_reads_them() -> None:
    text = with_spec(
        "resources: {requests: {cpu: 2, memory: 4Gi}}\n"
        "tuning:\n"
        "  allowRestart: true\n"
        "  maintenanceWindows: [{name: night, start: 22:00, duration: 4h}]"
    )
    spec = llmdeployment.loads(text).spec
    assert spec.resources is not None
    assert spec.resources.requests == {"cpu": "2", "memory": "4Gi"}
    assert spec.tuning is not None
    assert re.fullmatch("22:00", (spec.tuning.maintenance_windows or [])[0].start)


_HEAD = "kind: LLMDeployment\nspec:\n"
_BOMB = "  a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"  {name}: &{name} [{', '.join([f'*{of}'] * 10)}]\n"
    for of, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(_HEAD + _BOMB, id="aliases of aliases"),
        pytest.param(_HEAD + "  x: &x {y: *x}\n", id="an alias that holds itself"),
        pytest.param(_HEAD + "  x: " + "[" * 100 + "]" * 100, id="nested deeply"),
        pytest.param("{a: " * 600 + "1" + "}" * 600, id="nested more deeply than Python allows"),
        pytest.param(_HEAD + "  replicas: " + "9" * 5000, id="an integer without end"),
        pytest.param(_HEAD + "  ? [1, 2]\n  : 3\n", id="a list as a key"),
        pytest.param(_HEAD + '  x: "\\ud800"\n', id="half a character"),
    ],
)
def test_a_text_made_to_exhaust_its_reader_is_refused(text: str) -> None:
    problems_of(text)
