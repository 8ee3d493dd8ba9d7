"""Names, numbers and room of adapter versions."""

import pytest

from cadre.engines.vllm.adapters import AdapterVersions, count_slots, supported_rank


def test_room_is_for_what_is_played_what_still_runs_and_the_next():
    assert count_slots(trained=2, max_staleness=0) == 4
    assert count_slots(trained=3, max_staleness=2) == 12


def test_the_rank_is_the_next_that_vllm_knows():
    assert [supported_rank([rank]) for rank in (1, 2, 8, 9, 16, 33, 512)] == [1, 8, 8, 16, 16, 64, 512]
    assert supported_rank([4, 20]) == 32


def test_every_version_has_a_name_and_a_number_of_its_own():
    versions = AdapterVersions(8)
    create = [versions.create("planner", 1), versions.create("planner", 2), versions.create("tool", 1)]
    assert [adapter.name for adapter in create] == ["planner-v1", "planner-v2", "tool-v1"]
    assert [adapter.number for adapter in create] == [1, 2, 3]


def test_a_version_that_comes_again_has_another_name():
    versions = AdapterVersions(8)
    names = [versions.create("planner", 4).name for _ in range(3)]
    assert names == ["planner-v4", "planner-v4-2", "planner-v4-3"]


def test_an_old_version_is_unused_once_nobody_draws_with_it():
    versions = AdapterVersions(4)
    first, second = versions.create("planner", 1), versions.create("planner", 2)
    versions.activate(first)
    with versions.use("planner") as drawn_with:
        versions.activate(second)
        assert drawn_with is first
        assert versions.unused() == []
        with versions.use("planner") as later:
            assert later is second
    assert versions.unused() == [first]
    versions.remove(first)
    assert versions.loaded == [second]


def test_there_is_no_room_while_every_old_version_is_drawn_with():
    versions = AdapterVersions(2)
    versions.activate(versions.create("planner", 1))
    with versions.use("planner"):
        versions.activate(versions.create("planner", 2))
        assert versions.is_full
    assert not versions.is_full


def test_a_policy_without_an_adapter_is_drawn_with_none():
    versions = AdapterVersions(2)
    with versions.use("frozen") as adapter:
        assert adapter is None


def test_a_version_counts_as_used_until_an_error_has_left():
    versions = AdapterVersions(2)
    versions.activate(versions.create("planner", 1))
    with pytest.raises(KeyError), versions.use("planner"):
        raise KeyError
    versions.activate(versions.create("planner", 2))
    assert [adapter.version for adapter in versions.unused()] == [1]
