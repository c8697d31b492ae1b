"""Series by tenant: bounded, declared ones from the start."""

from paceline_crds import metrics
from paceline_engine.core.accounts import MAX_TENANTS, OTHER_TENANTS
from paceline_engine.testing.story import Story
from paceline_engine.testing.trial import Trial


def test_declared_tenants_have_series_before_their_first_request() -> None:
    story = Story(tenants=[{"name": "gold"}])
    assert story.stats.values[metrics.TENANT_REQUESTS] == {
        (tenant, state): 0.0 for tenant in ("default", "gold") for state in ("running", "waiting")
    }
    assert story.stats.values[metrics.TENANT_REFUSED] == {("default",): 0.0, ("gold",): 0.0}


def test_requests_of_a_tenant_are_counted_where_they_are() -> None:
    story = Story()
    for number in range(3):
        story.arrive(number, tenant="red")
    story.admit(0, slot=1)
    requests = story.stats.values[metrics.TENANT_REQUESTS]
    assert (requests["red", "running"], requests["red", "waiting"]) == (1, 2)
    story.tokens(1.0, s1=1)
    story.finish(0, 1, 1.0)
    requests = story.stats.values[metrics.TENANT_REQUESTS]
    assert (requests["red", "running"], requests["red", "waiting"]) == (0, 2)


def test_a_tenant_declared_late_has_its_own_series_though_names_are_many() -> None:
    story = Story()
    for number in range(MAX_TENANTS + 5):
        story.arrive(number, tenant=f"t{number}")
    story.recorder.settings_applied(
        Trial(tenants=[{"name": "late"}]).settings, generation=1, revision=1
    )
    story.arrive(999, tenant="late")
    requests = story.stats.values[metrics.TENANT_REQUESTS]
    assert requests["late", "waiting"] == 1
    assert requests[OTHER_TENANTS, "waiting"] == 6


def test_seats_given_up_and_refusals_are_counted_by_tenant() -> None:
    story = Story()
    story.arrive(0, tenant="red")
    story.recorder.seat_given_up(0)
    story.recorder.tenant_refused("blue")
    assert story.stats.value(metrics.TENANT_YIELDS, tenant="red") == 1
    assert story.stats.value(metrics.TENANT_REFUSED, tenant="blue") == 1


def test_virtual_tokens_are_shown_under_policy_fair_alone() -> None:
    trial = Trial(scheduling_policy="Fair", tenants=[{"name": "gold", "weight": 2}])
    trial.submit([1] * 10, max_tokens=3, tenant="gold")
    trial.run()
    stats = trial.recorder.snapshot(trial.now)
    assert stats.value(metrics.TENANT_VIRTUAL_TOKENS, tenant="gold") == (10 + 2 * 3) / 2
    trial.change(scheduling_policy="Fcfs")
    assert trial.recorder.snapshot(trial.now).values[metrics.TENANT_VIRTUAL_TOKENS] == {}
