"""What no release builds yet is told, never ignored."""

import pytest

from paceline_crds import llmdeployment, resolve, support

MANIFEST = """
apiVersion: paceline.dev/v1alpha1
kind: LLMDeployment
metadata: {name: demo}
spec:
  model: {uri: demo}
"""


def test_a_plain_manifest_is_supported() -> None:
    assert support.not_supported(llmdeployment.loads(MANIFEST).spec) == []


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("tensorParallelSize: 2", "tensorParallelSize"),
    ],
)
def test_a_field_that_is_not_built_is_named(line: str, path: str) -> None:
    spec = llmdeployment.loads(MANIFEST + f"  {line}\n").spec
    assert support.not_supported(spec) == [
        f"spec.{path} is not supported by this release; remove it"
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("dtype: Float16", "dtype must be Auto, Float32 or BFloat16, got Float16"),
    ],
)
def test_a_setting_that_the_engine_would_refuse_is_refused_before(line: str, sentence: str) -> None:
    spec = llmdeployment.loads(MANIFEST + f"  {line}\n").spec
    told = support.not_supported(spec, resolve.settings_of(spec))
    assert len(told) == 1
    assert told[0].startswith(sentence)


def test_stock_vllm_may_do_what_our_engine_cannot() -> None:
    manifest = MANIFEST.replace("uri: demo", "uri: hf://a/b")
    text = (
        manifest
        + "  runtime: VLLM\n  dtype: Float16\n  kvCache: {dtype: FP8}\n"
        + "  speculative: {method: Ngram, numTokens: 2}\n"
    )
    spec = llmdeployment.loads(text).spec
    assert support.not_supported(spec, resolve.settings_of(spec)) == []


def test_a_setting_without_a_flag_of_vllm_is_told() -> None:
    text = MANIFEST + '  runtime: VLLM\n  scheduling: {watermark: "0.1"}\n'
    spec = llmdeployment.loads(text).spec
    told = support.not_supported(spec, resolve.settings_of(spec))
    first = "spec.scheduling.watermark (watermark) has no counterpart in vLLM; remove it, or use "
    assert told == [
        first + "runtime: Paceline",
        "spec.model.uri demo is known to runtime Paceline alone; name another model",
    ]
