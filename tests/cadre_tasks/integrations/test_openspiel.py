"""OpenSpiel's games against the real package: texts, luck, pay, and exact figures against known ones."""

import asyncio
import itertools

import pytest

from cadre.envs.check import check_env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError
from cadre.rollout import walk
from cadre.rollout.grow import Rollout, grow
from cadre.rollout.shapes import independent
from cadre.types import Reward, Task
from cadre_tasks.integrations.openspiel import OpenSpiel, acting, answers, list_decisions, load_game
from tests.helpers.games import scripted_team

pyspiel = pytest.importorskip("pyspiel", reason="the extra openspiel is not installed")
TASK = Task("t", {"deal": "test-0"})


def play(env: OpenSpiel, *texts: str) -> list[Reward]:
    async def episode() -> list[Reward]:
        return [await env.step(dict.fromkeys(env.observe(), text)) for text in texts]

    return asyncio.run(episode())


def uniform(game: str) -> list[list[float]]:
    return [[1 / len(choice.answers)] * len(choice.answers) for choice in OpenSpiel.choices(game)]


@pytest.mark.parametrize(("game", "exploitability"), [("kuhn_poker", 0.458333), ("leduc_poker", 2.373611)])
def test_uniform_play_is_as_exploitable_as_is_known(game: str, exploitability: float) -> None:
    assert OpenSpiel.figures(uniform(game), game)["exploitability"] == pytest.approx(exploitability, abs=1e-6)


def test_an_equilibrium_of_kuhn_poker_cannot_be_exploited() -> None:
    """alpha = 0 (Kuhn 1950): never bet first; call with a king, with a queen one time in three after a bet."""
    bet = {"0": 0, "1": 0, "2": 0, "0pb": 0, "1pb": 1 / 3, "0p": 1 / 3, "1p": 0, "0b": 0, "1b": 1 / 3}
    states = [choice.observation.messages[0].content.split("\n")[1] for choice in OpenSpiel.choices("kuhn_poker")]
    figures = OpenSpiel.figures([[1 - bet.get(state, 1), bet.get(state, 1)] for state in states], "kuhn_poker")
    assert figures["exploitability"] == pytest.approx(0.0, abs=1e-9)
    assert figures["value_player_0"] == pytest.approx(-1 / 18)


def test_tiny_hanabi_is_worth_what_its_table_pays() -> None:
    assert OpenSpiel.figures(uniform("tiny_hanabi"), "tiny_hanabi")["optimum"] == 10.0
    # tell the card by the move; the partner answers with the move that the table pays ten for
    best = 0.0
    choices = OpenSpiel.choices("tiny_hanabi")
    pays = {}
    for deal in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for moves in ((a, b) for a in range(3) for b in range(3)):
            state = load_game("tiny_hanabi").new_initial_state()
            for action in (*deal, *moves):
                state.apply_action(action)
            pays[(*deal, *moves)] = state.returns()[0]
    for signal in ((a, b) for a in range(3) for b in range(3)):
        total = 0.0
        for second, shown in itertools.product((0, 1), set(signal)):
            cards = [card for card in (0, 1) if signal[card] == shown]
            total += max(sum(pays[card, second, shown, answer] for card in cards) for answer in range(3))
        best = max(best, total / 4)
    assert best == 10.0
    assert len(choices) == 2 + 2 * 3


def test_moves_are_words_and_what_is_no_move_costs() -> None:
    env = OpenSpiel(TASK, "kuhn_poker", penalty=0.5)
    (observation,) = env.observe().values()
    assert observation.messages[0].content.endswith("moves: Pass Bet")
    (wrong,) = play(env.fork(), "Raise")
    assert (wrong.parts["legal"], wrong.local["player_0"]) == (0.0, -0.5)
    (again,) = play(env.fork(), "Raise")
    assert again == wrong
    first, last = play(env, " Bet\n", "Pass")
    assert first.local == {"player_0": 0.0}
    assert last.local == {"player_0": 1.0, "player_1": -1.0}  # the end pays both, also who did not act
    assert env.success
    assert env.observe() == {}


def test_siblings_meet_the_same_luck_and_other_tasks_another() -> None:
    cards = set()
    for number in range(8):
        env = OpenSpiel(Task("t", {"deal": f"test-{number}"}), "leduc_poker")
        raised, called = env.fork(), env.fork()
        play(raised, "Raise", "Call")
        play(called, "Call", "Call")
        shown = [fork.state.history()[4] for fork in (raised, called)]
        assert shown[0] == shown[1]
        cards.add((*env.state.history(), shown[0]))
    assert len(cards) > 3


def test_who_moves_at_once_sees_no_move_of_the_other() -> None:
    env = OpenSpiel(TASK, "matrix_coordination")
    assert list(env.observe()) == ["player_0", "player_1"]
    (reward,) = play(env, "Left")
    assert (reward.team, reward.local, env.success) == (1.0, {}, True)
    assert OpenSpiel.figures([[0.5, 0.5], [0.25, 0.75]], "matrix_coordination") == {"value": 0.5, "optimum": 1.0}
    dilemma = OpenSpiel.figures([[1.0, 0.0], [0.0, 1.0]], "matrix_pd")
    assert dilemma == {"value_player_0": 0.0, "value_player_1": 10.0}


def test_a_whole_episode_pays_both_players_what_the_game_says() -> None:
    team, _ = scripted_team(OpenSpiel, lambda request, index: "Bet" if index else "Pass")
    root = asyncio.run(grow(OpenSpiel(TASK), Rollout(OpenSpiel, team, independent(2), 1.0), 0))
    assert root is not None
    for path in walk.episodes(root):
        reward = [sum(branch.reward.local.get(role, 0.0) for _, branch in path) for role in OpenSpiel.roles]
        assert sum(reward) == 0.0
        assert reward[0] != 0.0


@pytest.mark.parametrize(
    "game", ["kuhn_poker", "tiny_hanabi", "matrix_coordination", "tic_tac_toe", "kuhn_poker(players=3)"]
)
def test_the_contract_holds(game: str) -> None:
    assert asyncio.run(check_env(EnvSpec("openspiel", {"game": game})))


def test_what_cannot_be_played_is_one_paragraph() -> None:
    for name, expected in (
        ("kuhn_pokr", "Did you mean kuhn_poker?"),
        ("kuhn_poker(players=99)", "OpenSpiel refuses"),
        ("mfg_crowd_modelling", "no players who see text"),
        ("negotiation", "draws its chance moves inside itself"),
        ("crossword", "does not list its players' moves"),
    ):
        with pytest.raises(ConfigError, match=expected.replace("?", r"\?")) as caught:
            OpenSpiel(TASK, name)
        assert "\n" not in str(caught.value)


def test_games_that_are_too_large_have_no_figures() -> None:
    assert list_decisions(load_game("tic_tac_toe")) == []
    state = load_game("tic_tac_toe").new_initial_state()
    assert len(answers(state, acting(state)[0])) == 9


def test_an_absent_player_makes_the_first_legal_move_without_a_penalty() -> None:
    env = OpenSpiel(TASK, "matrix_coordination")
    assert [env.default_action(name) for name in env.roles] == ["Left", "Left"]
    assert play(env, env.default_action("player_0")) == [Reward(1.0, {}, {"legal": 1.0})]
