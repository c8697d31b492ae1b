"""Equal pods have an equal hash, and no two different ones share it."""

from typing import Any

import pytest

from paceline_operator.render import hash as template_hash


def template(**resources: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "a", "resources": resources}]}}


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "1000m"), ("1Gi", "1024Mi"), ("0.5", "500m"), ("1k", "1000"), ("1e3", "1000")],
)
def test_another_text_of_an_amount_is_the_same_pod(one: str, other: str) -> None:
    first, second = template(limits={"x": one}), template(limits={"x": other})
    assert template_hash.of_template(first) == template_hash.of_template(second)


@pytest.mark.parametrize(("one", "other"), [("1", "2"), ("1Gi", "1G"), ("1", "1m")])
def test_another_amount_is_another_pod(one: str, other: str) -> None:
    first, second = template(limits={"x": one}), template(limits={"x": other})
    assert template_hash.of_template(first) != template_hash.of_template(second)


def test_text_that_looks_like_an_amount_elsewhere_is_text() -> None:
    first, second = ({"args": [text]} for text in ("1", "1000m"))
    assert template_hash.of_template(first) != template_hash.of_template(second)


def test_the_order_of_keys_does_not_count_but_that_of_lists_does() -> None:
    assert template_hash.of_template({"a": 1, "b": 2}) == template_hash.of_template(
        {"b": 2, "a": 1}
    )
    assert template_hash.of_template({"a": [1, 2]}) != template_hash.of_template({"a": [2, 1]})
