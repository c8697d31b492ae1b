"""What this release does not build is named, never ignored."""

import pytest
from paceline_engine.core.supported import unsupported

from paceline_crds.settings import EngineSettings


def test_default_settings_are_supported() -> None:
    assert unsupported(EngineSettings()) == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"schedulingPolicy": "Fair"}, "schedulingPolicy"),
        ({"speculativeMethod": "Ngram"}, "speculativeMethod"),
        ({"speculativeNumTokens": 3}, "speculativeNumTokens"),
        ({"tensorParallelSize": 2}, "tensorParallelSize"),
        ({"kvCacheDtype": "FP8"}, "kvCacheDtype"),
        ({"interTokenTargetMs": 50}, "interTokenTargetMs"),
    ],
)
def test_a_value_that_is_not_built_is_named_with_what_to_do(settings: dict, named: str) -> None:
    (message,) = unsupported(EngineSettings(**settings))
    assert named in message
    assert ";" in message or "must be" in message
