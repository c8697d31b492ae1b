"""Accounts of tenants: declared ones stay, others are bounded."""

from paceline_crds.tenants import Tenant
from paceline_engine.core.accounts import DEFAULT_TENANT, MAX_TENANTS, OTHER_TENANTS, Accounts


def test_declared_tenants_have_their_terms_and_others_weight_one() -> None:
    accounts = Accounts()
    accounts.declare([Tenant(name="gold", weight=3, max_seqs=7, budget_share="0.5")])
    gold, free = accounts.of("gold"), accounts.of("free")
    assert (gold.weight, gold.max_seqs, gold.budget_share) == (3, 7, 0.5)
    assert (free.weight, free.max_seqs, free.budget_share) == (1, None, 1.0)
    accounts.declare([Tenant(name="free", weight=2)])
    assert (gold.weight, gold.max_seqs, gold.budget_share) == (1, None, 1.0)
    assert free.weight == 2


def test_a_request_without_a_name_belongs_to_the_default_tenant() -> None:
    accounts = Accounts()
    assert accounts.of("") is accounts.of(DEFAULT_TENANT)


def test_a_weight_divides_what_a_tenant_pays() -> None:
    accounts = Accounts()
    accounts.declare([Tenant(name="gold", weight=4)])
    accounts.of("gold").pay(100.0)
    accounts.of("free").pay(100.0)
    assert (accounts.of("gold").counter, accounts.of("free").counter) == (25.0, 100.0)


def test_of_too_many_names_the_idle_one_that_got_least_is_forgotten() -> None:
    accounts = Accounts()
    accounts.declare([Tenant(name="gold")])
    for number in range(MAX_TENANTS):
        accounts.of(f"t{number}").counter = float(1 + (number * 7) % MAX_TENANTS)
    accounts.of("t0").num_running = 1
    place = accounts.of("t183").index  # (183 * 7) % 256 == 1
    assert accounts.of("t183").counter == 2.0
    new = accounts.of("new")
    assert accounts.find("t183") is None
    assert new.index == place
    assert accounts.at(place) is new
    assert accounts.find("t0") is not None
    assert accounts.find("gold") is not None
    assert len(accounts) == MAX_TENANTS + 1


def test_names_beyond_the_bound_share_an_account_while_all_are_active() -> None:
    accounts = Accounts()
    for number in range(MAX_TENANTS):
        accounts.of(f"t{number}").num_waiting = 1
    one = accounts.of("one too many")
    one.num_waiting = 1
    assert accounts.of("two too many") is one
    assert one.name == OTHER_TENANTS
    assert len(accounts) == MAX_TENANTS + 1
    accounts.declare([Tenant(name="late")])
    assert accounts.of("late").name == "late"


def test_credit_is_what_was_forgone_up_to_a_bound_and_is_spent_before_the_counter_grows() -> None:
    account = Accounts().of("back")
    account.pay(10.0)
    account.lift(60.0, most_credit=80.0)
    assert (account.counter, account.credit, account.standing) == (60.0, 50.0, 10.0)
    account.lift(50.0, most_credit=80.0)
    assert (account.counter, account.credit) == (60.0, 50.0), "nobody is lowered"
    account.pay(20.0)
    assert (account.counter, account.credit) == (60.0, 30.0)
    account.lift(160.0, most_credit=80.0)
    assert (account.counter, account.credit) == (160.0, 80.0)
    account.pay(100.0)
    assert (account.counter, account.credit, account.standing) == (180.0, 0.0, 180.0)
