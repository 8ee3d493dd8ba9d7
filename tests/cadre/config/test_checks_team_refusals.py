"""Teams that an algorithm is not about are refused; policies exchange their roles by the number of the step."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from cadre.config.experiment import parse
from cadre.config.resolve import resolve, resolve_for_trees
from cadre.errors import ConfigError
from cadre.training.loop import team_of_step
from tests.helpers.coordination import GAMES
from tests.helpers.games import Pair, scripted_team

TWO = {"policies": {"one": "seed", "two": "seed"}, "roles": {"left": "one", "right": "two"}}
ONE = {"policies": {"shared": "seed"}, "roles": {"left": "shared", "right": "shared"}}
FROZEN = {"policies": {"one": "seed", "two": {"model": "seed", "frozen": True}}, "roles": TWO["roles"]}


def resolved(team: dict, algorithm: str = "grpo", **more):
    return resolve(parse({"env": f"{GAMES}:Pair", "team": team, "algorithm": algorithm, **more}))


@pytest.mark.parametrize(
    ("name", "fits", "refused", "expected"),
    [
        ("matpo", [ONE, FROZEN], [TWO], "trains one policy that plays all roles"),
        ("flow_grpo", [FROZEN], [ONE, TWO], "trains one role"),
        ("m_grpo", [TWO, FROZEN], [ONE], "a policy of its own for each role"),
    ],
)
def test_a_preset_is_about_a_team(name: str, fits: list, refused: list, expected: str) -> None:
    for team in fits:
        resolved(team, name)
    for team in refused:
        with pytest.raises(ConfigError, match=expected) as caught:
            resolved(team, name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("team", "algorithm"),
    [
        (ONE, "grpo"),
        (FROZEN, "grpo"),
        (TWO, "ippo"),
        ({**TWO, "policies": {"one": "seed", "two": {"model": "seed", "sampling": {"temperature": 0.5}}}}, "grpo"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(team: dict, algorithm: str) -> None:
    with pytest.raises(ConfigError, match=r"team\.exchange_every: got 2; expected several policies, all trained"):
        resolved({**team, "exchange_every": 2}, algorithm)


def test_a_misspelt_role_is_named_with_the_role_that_it_stands_for() -> None:
    team = {"policies": {"shared": "seed"}, "roles": {"lefft": "shared", "right": "shared"}}
    with pytest.raises(
        ConfigError, match=r"team\.roles\.lefft: .* no such role; .*Rename it to left\. Did you mean left"
    ):
        resolved(team)


@pytest.mark.parametrize(("split", "expected"), [("train", "got no training tasks"), ("test", "has 0 held-out tasks")])
def test_an_empty_split_is_refused(split: str, expected: str, tmp_path: Path) -> None:
    lines = (Path(GAMES).read_text(), "class Empty(Pair):", "    @classmethod", "    def tasks(cls, split):")
    (tmp_path / "empty.py").write_text(
        "\n".join([*lines, f"        return [] if split == {split!r} else Pair.tasks(split)"])
    )
    chosen = {"env": f"{tmp_path}/empty.py:Empty", "team": ONE, "algorithm": "grpo"}
    with pytest.raises(ConfigError, match=expected):
        resolve(parse(chosen))
    if split == "test":
        assert resolve(parse({**chosen, "evaluate": {"tasks": 0}}))


@dataclass
class Stub:
    experiment: object
    team: object
    pool: None = None


def test_policies_exchange_their_roles_every_so_many_steps() -> None:
    team, _ = scripted_team(Pair, lambda request, index: "0")
    team = team.assigned({"left": "one", "right": "two"})
    training = Stub(resolved({**TWO, "exchange_every": 2}), team)
    played = [team_of_step(training, step).assignment["left"] for step in range(6)]
    assert played == ["one", "one", "two", "two", "one", "one"]
    assert team_of_step(training, 3).assignment == {"left": "two", "right": "one"}
    assert team_of_step(Stub(resolved(TWO), team), 3).assignment == {"left": "one", "right": "two"}


def test_a_team_of_which_nobody_is_trained_has_trees_and_no_training() -> None:
    team = {"policies": {"two": FROZEN["policies"]["two"]}, "roles": {"left": "two", "right": "two"}}
    still = parse({"env": f"{GAMES}:Pair", "team": team, "algorithm": "grpo"})
    assert resolve_for_trees(still).trained_roles == {}
    with pytest.raises(ConfigError, match=r"got two frozen, so that nobody is trained.* cadre eval"):
        resolve(still)
    with pytest.raises(ConfigError, match=r"credit.role_weights: got 0 for left, right"):
        resolved(TWO, credit={"role_weights": {"left": 0, "right": 0}})
    resolved(TWO, credit={"role_weights": {"left": 0}})
