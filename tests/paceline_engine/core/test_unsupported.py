import pytest

from paceline_crds.settings import EngineSettings
from paceline_crds.unsupported import unsupported
from paceline_engine.core.errors import SettingRefused, StartFailed
from paceline_engine.core.unsupported import refuse_at_start, refuse_change

CASES = {
    "dtype": "Float16",
    "tensorParallelSize": 2,
}


def test_default_settings_are_all_supported() -> None:
    assert unsupported(EngineSettings()) == []
    refuse_at_start(EngineSettings())


def test_targets_of_the_service_level_are_supported() -> None:
    targets = {"sloTtftMs": 500, "sloItlMs": 50, "sloE2eMs": 9000}
    refuse_at_start(EngineSettings.model_validate(targets).booted())


@pytest.mark.parametrize(("name", "value"), CASES.items())
def test_a_value_that_nothing_builds_names_field_expected_and_got(name: str, value: object) -> None:
    settings = EngineSettings.model_validate({name: value})
    with pytest.raises(StartFailed, match=f"{name} must be .*, got {value}") as start:
        refuse_at_start(settings)
    assert start.value.reason == "InvalidSettings"
    with pytest.raises(SettingRefused) as change:
        refuse_change(settings)
    assert (change.value.status, change.value.field) == (400, name)


def test_a_start_names_every_field_at_fault() -> None:
    with pytest.raises(StartFailed) as refused:
        refuse_at_start(EngineSettings.model_validate(CASES))
    assert all(name in str(refused.value) for name in CASES)
