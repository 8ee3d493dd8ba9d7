"""Audits: executed effects on games whose effects are known, and figures worked out by hand."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadre.config.experiment import parse
from cadre.config.resolve import resolve
from cadre.env import Env
from cadre.errors import ConfigError, ContractError
from cadre.types import Request, Reward
from cadre_analysis.audit import (
    AuditSettings,
    DecisionEffects,
    agreement_report,
    check_auditable,
    decision_sums,
    execute_decisions,
    figures_of,
    is_significant,
    sample_decisions,
)
from tests.cadre.cli.calling import call
from tests.helpers.coordination import GAMES
from tests.helpers.games import Relay, scripted_team

ROLES = {"scout": "shared", "runner": "shared"}


def relay(algorithm: dict, **more):
    team = {"policies": {"shared": "seed"}, "roles": ROLES}
    sections = {"env": f"{GAMES}:Relay", "settings": {"turns": 1}, "team": team, "algorithm": algorithm}
    return resolve(parse(sections | more))


def answer(request: Request, index: int) -> str:
    """The scout's siblings say a or bb; the runner repeats the note always for a, and every other time for bb."""
    if request.role == "scout":
        return ["a", "bb"][index % 2]
    note = request.messages[0].content.split("note=")[1].split()[0]
    return note if note == "a" or (request.key + index) % 2 else "wrong"


def audit(algorithm: dict, expected: AuditSettings) -> list[DecisionEffects]:
    experiment = relay(algorithm)
    team, _ = scripted_team(Relay, answer)

    async def both() -> list[DecisionEffects]:
        return await execute_decisions(experiment, team, await sample_decisions(experiment, team, expected), expected)

    return asyncio.run(both())


def test_siblings_are_played_out_from_their_own_state_with_fresh_noise() -> None:
    result = audit({"name": "magrpo", "k": 2}, AuditSettings(tasks=4, decisions=100, plays=40))
    scouts = [item for item in result if item.role == "scout"]
    assert len(scouts) == 4
    for scout in scouts:
        # the step pays the scout 1 and 2 for the length of its note, what follows pays the team 1, and 1 or 0
        assert set(scout.earned[0]) == {2.0}
        assert set(scout.earned[1]) == {2.0, 3.0}
        assert sum(scout.effects) == pytest.approx(0.0)
    runners = [item for item in result if item.role == "runner"]
    assert {pay for runner in runners for plays in runner.earned for pay in plays} <= {0.0, 1.0}
    assert all(
        len(set(plays)) == 1 for runner in runners for plays in runner.earned
    )  # nothing follows the last decision


def test_a_step_that_fails_now_and_then_costs_no_audit() -> None:
    """It is played again; where it fails each time the decision is left out, and where all do the audit ends."""
    experiment = relay({"name": "magrpo", "k": 2}, episodes={"retries": 1, "failed_fraction": 0.6})
    team, _ = scripted_team(Relay, answer)
    expected = AuditSettings(tasks=4, decisions=100, plays=2)
    result = asyncio.run(sample_decisions(experiment, team, expected))
    game = experiment.env_spec.declared
    step, calls = game.step, []

    def failing(often: Callable[[str], bool]) -> Any:
        async def stepped(self: Env, actions: dict[str, str]) -> Reward:
            calls.append(self.task.id)
            if often(self.task.id):
                raise OSError("a server that hiccups")
            return await step(self, actions)

        return stepped

    def played() -> list[DecisionEffects]:
        return asyncio.run(execute_decisions(experiment, team, result, expected))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(game, "step", failing(lambda task: len(calls) == 3))
        assert len(played()) == len(result.decisions)
        first = result.decisions[0].task.id
        patch.setattr(game, "step", failing(lambda task: task == first))
        assert len(played()) == sum(spot.task.id != first for spot in result.decisions)
        patch.setattr(game, "step", failing(lambda task: True))
        with pytest.raises(ContractError, match=r"Every episode failed .* a server that hiccups"):
            played()


def test_advantages_are_those_of_the_algorithm() -> None:
    expected = AuditSettings(tasks=2, decisions=100, plays=2)
    scaled = audit({"name": "at_grpo", "k": 2, "lookahead": 0}, expected)
    plain = audit({"name": "magrpo", "k": 2}, expected)
    assert {datum.advantages for datum in scaled if datum.role == "scout"} == {(-1.0, 1.0)}
    assert {datum.advantages for datum in plain if datum.role == "scout"} != {(-1.0, 1.0)}


def test_decisions_are_drawn_from_every_role_at_every_depth_alike() -> None:
    result = audit(
        {"name": "magrpo", "k": 3}, AuditSettings(tasks=4, decisions=6, plays=2)
    )  # 4 of the scout, 12 of the runner
    assert Counter((item.role, item.depth) for item in result) == {("scout", 0): 3, ("runner", 1): 3}
    more = audit({"name": "magrpo", "k": 3}, AuditSettings(tasks=4, decisions=11, plays=2))
    assert Counter(item.role for item in more) == {"scout": 4, "runner": 7}


def one_decision(
    advantages: tuple[float, ...], *earned: tuple[float, ...], tree: int = 0, depth: int = 0
) -> DecisionEffects:
    return DecisionEffects(tree, "a", depth, advantages, earned)


def test_figures_by_hand() -> None:
    agree = one_decision((-1.0, 1.0), (0.0, 0.0), (4.0, 4.0))
    opponent = one_decision((1.0, -1.0), (0.0, 0.0), (4.0, 4.0), tree=1)
    assert agree.effects == [-2.0, 2.0]
    assert figures(agree) == pytest.approx((1.0, 1.0, 1.0, 1.0))
    assert figures(agree, opponent)[:2] == pytest.approx((0.0, 0.0))
    assert figures(one_decision((0.0, 0.0), (1.0, 1.0), (2.0, 2.0)))[0] == 0.0
    noisy = one_decision((-1.0, 1.0), (0.0, 2.0), (2.0, 4.0))
    # effects -1 and 1, sum of squares 2; both variances 2, (2 + 2) / 2 plays * 1 / 2 = 1
    assert figures(noisy)[2] == pytest.approx(0.5)


def figures(*decisions: DecisionEffects) -> tuple[float, ...]:
    return tuple(figures_of(sum(decision_sums(decision, True) for decision in decisions)))


def test_a_decision_matters_where_its_siblings_differ_by_more_than_their_noise() -> None:
    generator = np.random.default_rng(0)
    assert is_significant(one_decision((0.0, 0.0), (0.0,) * 8, (1.0,) * 8), generator)
    assert not is_significant(one_decision((0.0, 0.0), (1.0,) * 8, (1.0,) * 8), generator)
    assert not is_significant(one_decision((0.0, 0.0), (0.0, 1.0) * 4, (1.0, 0.0) * 4), generator)


def test_a_report_by_role_and_depth_with_intervals_over_tasks() -> None:
    audited = [
        one_decision((-1.0, 1.0), (0.0,) * 8, (float(tree),) * 8, tree=tree, depth=depth)
        for tree in range(6)
        for depth in (0, 1)
    ]
    result = agreement_report(audited)
    assert list(result) == ["all", "a", "a/0", "a/1"]
    assert (result["all"].decisions, result["a/1"].decisions) == (12, 6)
    value, low, high = result["all"].matter
    assert (value, low <= value <= high, low < high) == (pytest.approx(5 / 6), True, True)
    value, low, high = result["all"].correlation
    assert 0.5 < low <= value <= high <= 1.0 + 1e-9
    assert result["all"].explained[0] == pytest.approx(value**2)
    assert agreement_report(audited) == result


def test_figures_that_all_tasks_share_are_no_certainty() -> None:
    """Mistake: resampled tasks that are alike give intervals without width."""
    alike = [one_decision((-1.0, 1.0), (0.0,) * 8, (1.0,) * 8, tree=tree) for tree in range(9)]
    result = agreement_report(alike)["all"]
    for figure in (result.correlation, result.explained, result.ceiling, result.matter):
        assert figure == pytest.approx((1.0, 0.9, 1.0))
    still = [one_decision((-1.0, 1.0), (1.0,) * 8, (1.0,) * 8, tree=tree) for tree in range(9)]
    assert agreement_report(still)["all"].matter == pytest.approx((0.0, 0.0, 0.1))


def test_one_task_says_nothing_about_others() -> None:
    """Its own figure, within all that there could be; resampled it would have an interval without width."""
    result = agreement_report([one_decision((-1.0, 1.0), (0.0,) * 8, (1.0,) * 8, tree=0, depth=0)])["all"]
    assert (result.correlation, result.matter) == ((pytest.approx(1.0), -1.0, 1.0), (1.0, 0.0, 1.0))


def test_what_has_no_siblings_or_no_comparison_is_refused() -> None:
    with pytest.raises(ConfigError, match="come from a critic"):
        check_auditable(relay({"name": "ippo", "k": 2}))
    with pytest.raises(ConfigError, match="come from a teacher's log-probabilities alone"):
        check_auditable(relay({"name": "grpo", "k": 2}, teacher={"weights": "initial", "alone": True}))
    check_auditable(relay({"name": "grpo", "k": 2}, teacher={"weights": "initial"}))
    with pytest.raises(ConfigError, match="no decision with siblings"):
        audit({"name": "ma_reinforce", "k": 1}, AuditSettings(tasks=1))


def test_the_command_says_what_it_costs_before_it_starts(speaker: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "relay.yaml"
    recipe.write_text(
        f"env: {GAMES}:Relay\nteam: {{policies: {{shared: {speaker}}}, roles: {{scout: shared, runner: shared}}}}\n"
        "algorithm: {name: magrpo, k: 2}\nsampling: {max_tokens: 2}\n"
    )
    result = call("audit", str(recipe), "--tasks", "2", "--decisions", "4", "--plays", "2")
    assert result.code == 0
    assert "4 decisions of 2 trees" in result.out
    assert result.out.index("tokens more") < result.out.index("correlation")
    as_json = call("audit", str(recipe), "--tasks", "2", "--decisions", "4", "--plays", "2", "--json")
    assert json.loads(as_json.out)["all"]["decisions"] == 4
