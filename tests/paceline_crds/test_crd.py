"""The definition tells the version of its schema to whoever may read schemas alone."""

import pytest

from paceline_crds import crd


def test_the_description_tells_the_version_of_the_schema() -> None:
    (version,) = crd.definition()["spec"]["versions"]
    description = version["schema"]["openAPIV3Schema"]["description"]
    assert crd.told_version(description) == crd.SCHEMA_VERSION


@pytest.mark.parametrize("description", ["", "One model.", "Schema version .", "Schema version x."])
def test_a_description_without_a_version_is_older_than_all(description: str) -> None:
    assert crd.told_version(description) == 0
