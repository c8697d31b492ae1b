"""The benchmark of preemption: few tokens are computed twice in a small pool."""

import pytest

from paceline_engine.bench import preemption


@pytest.mark.slow
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_less_than_a_twentieth_is_computed_twice_and_less_than_under_the_usual_rules(
    prefix_caching: bool,
) -> None:
    ours, usual = (
        preemption.measure(300, prefix_caching=prefix_caching, gives_all_back=gives_all_back)
        for gives_all_back in (False, True)
    )
    assert ours.preemptions > 0
    assert ours.share < 0.05
    assert ours.computed_tokens - ours.recomputed_tokens == (
        usual.computed_tokens - usual.recomputed_tokens
    )
    if not prefix_caching:
        assert ours.recomputed_tokens < usual.recomputed_tokens
    assert preemption.line(ours).split()[0] == "300"
