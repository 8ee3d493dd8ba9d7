"""Accounts of a team and its roles: a step is rewarded with the change."""

import pytest

from cadre_tasks.account import Account


def test_a_step_pays_what_it_changed() -> None:
    account = Account()
    account, first = account.settle(0.4, {"a": 0.6, "b": 0.2}, {"right": 1.0})
    assert (first.team, first.local, first.parts) == (0.4, {"a": 0.6, "b": 0.2}, {"right": 1.0})
    account, same = account.settle(0.4, {"a": 0.6})
    assert (same.team, same.local) == (0.0, {"a": 0.0})
    account, lost = account.settle(0.0, {"b": 0.5})
    assert (lost.team, lost.local) == (-0.4, {"b": pytest.approx(0.3)})
    assert account == Account(0.0, {"a": 0.6, "b": 0.5})


def test_an_account_is_replaced_and_never_changed() -> None:
    initial_account = Account(1.0, {"a": 1.0})
    initial_account.settle(0.0, {"a": 0.0, "b": 2.0})
    assert initial_account == Account(1.0, {"a": 1.0})
