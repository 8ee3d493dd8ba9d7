"""Trees as the shapes grow them, and the sampling mistakes of public AT-GRPO code: each has a test that catches it."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.parity.trees import credit_of
from cadre.advantages.groups import compare_samples
from cadre.advantages.returns import samples_of
from cadre.env import Env
from cadre.errors import ConfigError, ContractError
from cadre.rollout import grow as growing
from cadre.rollout import shapes, walk
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout, grow
from cadre.types import Message, Node, Observation, Request, Reward, Task, Tree
from tests.helpers.games import Digit, Pair, Relay, scripted_team


def grown(env: Env, answer, chosen: shapes.Shape, key: int = 7) -> tuple[Node, list[Request]]:
    team, sampler = scripted_team(type(env), answer)
    root = asyncio.run(grow(env, Rollout(type(env), team, chosen, 1.0), key))
    assert root is not None
    return root, sampler.requests


def index_or_note(request: Request, index: int) -> str:
    """The scout's siblings say a, aa, aaa; the runner's first sibling is wrong and the others repeat the note."""
    if request.role == "scout":
        return "a" * (index + 1)
    note = request.messages[0].content.split("note=")[1].split()[0]
    return note if index else "wrong"


def relay(turns: int = 2) -> Relay:
    return Relay(Task("t", {}), turns)


def test_greedy_selects_the_argmax_of_every_decision() -> None:
    root, requests = grown(relay(), index_or_note, shapes.greedy(3))
    assert [request.role for request in requests] == ["scout", "runner", "scout", "runner"]
    assert all(request.count == 3 for request in requests)
    assert [branch.child is not None for branch in root.branches] == [False, False, True]  # "aaa" pays most
    (path,) = walk.episodes(root)
    assert [branch.reward.team for _, branch in path] == [0.0, 1.0, 0.0, 1.0]
    assert path[-1][1].success


def test_success_is_named_by_the_selection() -> None:
    """Training success is best-of-K only where the best of K branches is selected at every decision."""
    roles = ("scout", "runner")
    labels = [
        (shapes.greedy(8), "best-of-8"),
        (shapes.greedy(8, lookahead=2), "best-of-8"),
        (shapes.greedy({"scout": 4, "runner": 8}), "best-of-4-to-8"),
        (shapes.greedy((8, 2)), "best-of-2-to-8"),
        (shapes.greedy(1), "success"),
        (shapes.greedy(8, shapes.SELECTIONS["random"]), "success"),
        (shapes.independent(8), "success"),
        (shapes.full(2), "success"),
    ]
    assert [shapes.success_label(shape, roles) for shape, _ in labels] == [label for _, label in labels]


def test_each_sibling_is_judged_on_its_own_copy_of_the_one_state() -> None:
    """Mistake: the second agent's siblings are read from copies of the first one's winner, and all K get one reward."""
    root, _ = grown(relay(1), index_or_note, shapes.greedy(3))
    runner = root.branches[2].child
    assert runner is not None
    assert [branch.reward.team for branch in runner.branches] == [0.0, 1.0, 1.0]


def test_a_prompt_shows_the_state_that_is_stepped() -> None:
    """Mistake: step() on one copy and the prompt from another. The second turn must know how the first one ended."""
    _, requests = grown(relay(), index_or_note, shapes.greedy(3))
    second = requests[2].messages[0].content
    assert second.endswith("past=aaa>aaa")
    assert "turn=1" in second


def test_the_second_role_is_asked_after_the_first_has_acted() -> None:
    """Mistake: all prompts of a sequential turn are built before anybody acts."""
    _, requests = grown(relay(1), index_or_note, shapes.greedy(3))
    assert "note=aaa" in requests[1].messages[0].content


def test_grpo_trains_every_episode_not_only_the_longest() -> None:
    """Mistake: a baseline keeps only the samples of the longest episode."""

    class Short(Relay):
        def observe(self):
            return {} if self.past == ["a>a"] else super().observe()

    def answer(request: Request, index: int) -> str:
        if request.role == "scout":
            return "a" if index == 0 and "turn=0" in request.messages[0].content else "bb"
        return request.messages[0].content.split("note=")[1].split()[0]

    root, _ = grown(Short(Task("t", {}), 2), answer, shapes.independent(2))
    lengths = sorted(len(path) for path in walk.episodes(root))
    assert lengths == [2, 4]
    groups = compare_samples(samples_of([Tree(Task("t", {}), root)]), credit_of("episode", "task_role", "mean", "std"))
    assert sum(len(group.samples) for group in groups) == 6


def test_independent_parts_at_the_root_and_never_branches_again() -> None:
    root, requests = grown(relay(), index_or_note, shapes.independent(3))
    assert Counter(request.count for request in requests) == {3: 1, 1: 9}
    assert len(list(walk.episodes(root))) == 3


@pytest.mark.parametrize(("joint", "leaves"), [("aligned", 2**2), ("cross", 4**2)])
def test_full_plays_every_joint_action_out(joint: shapes.Joint, leaves: int) -> None:
    root, _ = grown(Pair(Task("t", {}), 2), lambda request, index: str(index), shapes.full(2, joint))
    assert len(list(walk.episodes(root))) == leaves
    assert shapes.count_leaves(shapes.full(2, joint), [("left", "right")] * 2) == leaves


@pytest.mark.parametrize("stop_at", [None, 0.5])
def test_branches_that_are_over_where_a_tree_stops_are_episodes(stop_at: float | None) -> None:
    """All four are right: nothing is left to play, so it does not matter whether the tree would have grown further."""
    root, _ = grown(Digit(Task("t", {"digit": 3})), lambda request, index: "3", shapes.full(4, stop_at=stop_at))
    assert [path[-1][1].success for path in walk.episodes(root)] == [True] * 4


def test_branches_that_are_not_over_where_a_tree_stops_are_no_episodes() -> None:
    """The notes pay 1 and 2, which is more than 1 on average; after the first note the episode is over at once."""

    class Short(Relay):
        def observe(self):
            return {} if self.note == "a" else super().observe()

    root, _ = grown(Short(Task("t", {})), index_or_note, shapes.full(2, stop_at=1.0))
    assert [branch.selected for branch in root.branches] == [True, False]
    assert len(list(walk.episodes(root))) == 1


def test_siblings_by_role_and_turn() -> None:
    by_role = {"scout": 3, "runner": (2, 1)}
    root, requests = grown(relay(3), index_or_note, shapes.greedy(by_role))
    assert [(request.role, request.count) for request in requests] == [
        ("scout", 3),
        ("runner", 2),
        ("scout", 3),
        ("runner", 1),
        ("scout", 3),
        ("runner", 1),  # the last number repeats
    ]
    assert [len(node.branches) for node in walk.nodes(root)] == [3, 2, 3, 1, 3, 1]
    _, requests = grown(relay(2), index_or_note, shapes.greedy((4, 2)))
    assert [request.count for request in requests] == [4, 4, 2, 2]
    # (3 * 2) leaves of the first turn, and below each of them 3 * 1
    acting = [("scout",), ("runner",)] * 2
    assert shapes.count_leaves(shapes.full(by_role), acting) == 18
    assert shapes.count_leaves(shapes.greedy(by_role), acting) == 3
    # the scout's decisions pay nobody: three siblings, each with two answers at first and one later
    assert shapes.count_leaves(shapes.greedy(by_role, lookahead=1), acting, unrewarded=[0, 2]) == 6
    # nothing ever pays: two decisions fan out, what follows them does not
    assert shapes.count_leaves(shapes.greedy(3, lookahead=2), acting, unrewarded=range(4)) == 27
    root, _ = grown(relay(2), index_or_note, shapes.full(by_role))
    assert len(list(walk.episodes(root))) == 18


def test_unequal_siblings_of_roles_that_act_at_once_are_crossed_never_aligned() -> None:
    unequal = {"left": 2, "right": 3}
    root, _ = grown(Pair(Task("t", {})), lambda request, index: str(index), shapes.full(unequal, "cross"))
    choices = [(branch.choice["left"], branch.choice["right"]) for branch in root.branches]
    assert choices == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for refused in (shapes.full(unequal), shapes.greedy(unequal)):
        with pytest.raises(ConfigError, match="2 of left and 3 of right act at once"):
            grown(Pair(Task("t", {})), lambda request, index: str(index), refused)


@pytest.mark.parametrize("shaped", [shapes.greedy(5), shapes.independent(5), shapes.full(3), shapes.full(3, "cross")])
def test_equal_actions_are_stepped_once_and_the_tree_is_the_same(
    shaped: shapes.Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[dict[str, str]] = []

    class CountedForks(Pair):
        async def step(self, actions: dict[str, str]) -> Reward:
            stepped.append(actions)
            return await super().step(actions)

    async def plainly(env, actions, contain):
        forks = [env.fork() for _ in actions]
        return forks, [await fork.step_samples(action) for fork, action in zip(forks, actions, strict=True)]

    def answer(request, index):
        return str(index % 2)

    once, _ = grown(CountedForks(Task("t", {}), 2), answer, shaped)
    few = len(stepped)
    monkeypatch.setattr(growing, "step_copies", plainly)
    item, _ = grown(CountedForks(Task("t", {}), 2), answer, shaped)
    assert once == item
    assert few < len(stepped) - few


def test_turns_count_what_the_acting_roles_did_before() -> None:
    root, _ = grown(relay(), index_or_note, shapes.greedy(2))
    assert [node.turn for node in walk.nodes(root)] == [0, 0, 1, 1]


def test_noise_is_keyed_by_node_and_role_and_differs_between_them() -> None:
    _, first = grown(Pair(Task("t", {}), 2), lambda request, index: str(index), shapes.full(2))
    _, again = grown(Pair(Task("t", {}), 2), lambda request, index: str(index), shapes.full(2))
    assert [request.key for request in first] == [request.key for request in again]
    assert len({request.key for request in first}) == len(first)


def test_what_a_role_said_last_goes_with_its_next_request() -> None:
    _, requests = grown(relay(), index_or_note, shapes.greedy(3))
    assert requests[0].previous is None
    assert requests[2].previous is not None
    assert requests[2].previous.sample.text == "aaa"


def test_a_failing_environment_is_counted_and_does_not_stop_the_others() -> None:
    class Fragile(Digit):
        async def step(self, actions: dict[str, str]) -> Reward:
            if self.task.data["digit"] == 1:
                raise ValueError("no ones")
            return await super().step(actions)

    team, _ = scripted_team(Fragile, lambda request, index: "0")
    tasks = list(Fragile.tasks("train"))[:4]
    trees, failures = asyncio.run(grow_many(tasks, Rollout(Fragile, team, shapes.greedy(2), 1.0), 0))
    assert [tree.task.data["digit"] for tree in trees] == [0, 2, 3]
    assert "no ones" in failures[0].error
    with pytest.raises(ContractError, match="no ones"):
        asyncio.run(grow_many(tasks[1:2], Rollout(Fragile, team, shapes.greedy(2), 1.0), 0))


def test_an_environment_that_never_ends_is_stopped() -> None:
    class EndlessTree(Digit):
        def observe(self):
            return Digit(self.task).observe()

    team, _ = scripted_team(EndlessTree, lambda request, index: "0")
    with pytest.raises(ContractError, match="not over after"):
        asyncio.run(grow(EndlessTree(Task("t", {"digit": 0})), Rollout(EndlessTree, team, shapes.greedy(1), 1.0), 0))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.integers())
def test_carry_rules_pick_one_branch(scores: list[float], seed: int) -> None:
    for selection in shapes.SELECTIONS:
        (index,) = shapes.SELECTIONS[selection](scores, random.Random(seed))
        assert 0 <= index < len(scores)
        if selection == "argmax":
            assert scores[index] == max(scores)


def test_argmax_breaks_ties_evenly_and_sampling_follows_the_score() -> None:
    ties = Counter(shapes.greedy(3).select([1.0, 0.0, 1.0], random.Random(seed))[0] for seed in range(2000))
    assert set(ties) == {0, 2}
    assert 850 < ties[0] < 1150  # within five deviations of 1000
    samples = Counter(shapes.SELECTIONS["sample"]([0.0, 1.0, 3.0], random.Random(seed))[0] for seed in range(2000))
    assert set(samples) == {1, 2}
    assert 1400 < samples[2] < 1600  # three quarters


class Errand(Env):
    """`leader` says a plan, `worker` a report and `leader` an answer, `turns` times; the answer alone is paid, by the
    sum of all three numbers, to the team or to the leader."""

    roles = ("leader", "worker")

    def __init__(self, task: Task, turns: int = 1, to: str = "team") -> None:
        super().__init__(task)
        self.turns, self.to, self.said = turns, to, []  # type: int, str, list[str]

    def observe(self) -> dict[str, Observation]:
        if len(self.said) == 3 * self.turns:
            return {}
        role = ("leader", "worker", "leader")[len(self.said) % 3]
        return {role: Observation(role, (Message("user", " ".join(self.said)),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        (text,) = actions.values()
        self.said.append(text)
        if len(self.said) % 3:
            return Reward()
        worth = float(sum(map(int, self.said[-3:])))
        return Reward(team=worth) if self.to == "team" else Reward(local={"leader": worth})

    @property
    def success(self) -> bool:
        return True


def worth_of(root: Node, returns: str = "first_reward") -> dict[tuple[tuple[int, ...], str, int], float]:
    """The return of every sample by where it stands."""
    groups = compare_samples(samples_of([Tree(Task("t", {}), root)]), credit_of(returns, "node", "none", "none"))
    return {scored.tree_sample.position[1:]: scored.returns for group in groups for scored in group.samples}


def by_number(request: Request, index: int) -> str:
    """Siblings say 0, 1, 2, ..."""
    return str(index)


def errand(turns: int = 1, to: str = "team") -> Errand:
    return Errand(Task("t", {}), turns, to)


def test_a_decision_that_pays_nobody_is_worth_what_follows_it() -> None:
    """Mistake: siblings of such a decision all earn 0, and the role never learns."""
    root, requests = grown(errand(), by_number, shapes.greedy(2, lookahead=2))
    got = worth_of(root)
    # a plan of 0 or 1, the better report 1 below either, the better answer 1 below that
    assert [got[(), "leader", index] for index in range(2)] == [2.0, 3.0]
    assert [got[(0,), "worker", index] for index in range(2)] == [1.0, 2.0]
    assert [got[(1,), "worker", index] for index in range(2)] == [2.0, 3.0]
    assert [got[(1, 1), "leader", index] for index in range(2)] == [2.0, 3.0]
    assert len(requests) == 1 + 2 + 4
    # the paper's own return, and its tree, are still there
    plain, requests = grown(errand(), by_number, shapes.greedy(2))
    assert len(requests) == 3
    assert {value for (path, _, _), value in worth_of(plain).items() if len(path) < 2} == {0.0}


def test_one_episode_is_carried_on_and_it_is_the_best_that_was_found() -> None:
    root, requests = grown(errand(turns=2), by_number, shapes.greedy(2, lookahead=2))
    (path,) = walk.episodes(root)
    assert [branch.choice for _, branch in path] == [{"leader": 1}, {"worker": 1}, {"leader": 1}] * 2
    assert len(requests) == 2 * (1 + 2 + 4)  # only the episode itself goes on to the second turn
    got = worth_of(root)
    assert got[(), "leader", 0] == 2.0  # what the first turn pays: the second is another decision's
    remaining = root.branches[0]
    assert remaining.child is not None
    assert not remaining.selected
    assert [branch.selected for branch in remaining.child.branches] == [False, True]


def test_looking_ahead_is_bounded_and_what_lies_beyond_is_played_by_one_sibling() -> None:
    root, requests = grown(errand(), by_number, shapes.greedy(2, lookahead=1))
    assert len(requests) == 1 + 2 + 2
    got = worth_of(root)
    for index in range(2):
        report = root.branches[index].child
        assert report is not None
        (carried,) = (number for number, branch in enumerate(report.branches) if branch.selected)
        assert got[(), "leader", index] == index + carried + 1
        assert [got[(index,), "worker", number] for number in range(2)] == [0.0, 0.0]


def test_a_step_that_judges_with_nothing_is_paid() -> None:
    """The paper's own search where a reward says 0: that is what the siblings are compared by."""

    class Judged(Errand):
        async def step(self, actions: dict[str, str]) -> Reward:
            reward = await super().step(actions)
            return reward if reward.team else Reward(local=dict.fromkeys(actions, 0.0))

    _, requests = grown(Judged(Task("t", {})), by_number, shapes.greedy(2, lookahead=2))
    assert len(requests) == 3


def test_a_role_that_nobody_pays_on_the_way_waits_for_the_end() -> None:
    """Answers are paid to the leader alone: its wait ends with the first one, the worker's with the episode."""
    root, _ = grown(errand(turns=2, to="leader"), by_number, shapes.greedy(2, lookahead=2))
    got = worth_of(root)
    assert {value for (_, role, _), value in got.items() if role == "worker"} == {0.0}
    for plan in root.branches:
        assert plan.child is not None
        (report,) = (branch for branch in plan.child.branches if branch.selected)
        plans, reports = plan.choice["leader"], report.choice["worker"]
        assert got[(), "leader", plans] == plans + reports + 1
        assert all(branch.child is not None for branch in plan.child.branches)
    depths = {path[0]: len(path) for path, _, _ in got if path}
    assert depths == {0: 5, 1: 5}  # what was not carried was played to its end too


def test_what_follows_equal_actions_is_played_once_and_is_worth_the_same() -> None:
    def answer(request: Request, index: int) -> str:
        return str(min(index, 1))

    root, requests = grown(errand(), answer, shapes.greedy(4, lookahead=2))
    assert len(requests) == 1 + 2 + 4
    assert [branch.child is None for branch in root.branches] == [False, False, True, True]
    got = worth_of(root)
    assert [got[(), "leader", index] for index in range(4)] == [2.0, 3.0, 3.0, 3.0]
    (path,) = walk.episodes(root)
    assert path[0][1].choice == {"leader": 1}
    # three of four siblings say 1
    assert [branch.child and branch.child.weight for branch in root.branches] == [0.25, 0.75, None, None]


def test_equal_actions_of_an_environment_that_does_not_repeat_are_each_explored() -> None:
    """Mistake: the first of two equal plans alone is looked at, and the episode goes on from the worse state."""
    states = iter(range(10))

    class Chance(Errand):
        repeatable = False

        async def step(self, actions: dict[str, str]) -> Reward:
            self.said.append(str(next(states)) if not self.said else "0")
            return Reward() if len(self.said) % 3 else Reward(team=float(sum(map(int, self.said))))

    root, _ = grown(Chance(Task("t", {})), lambda request, index: "same", shapes.greedy(2, lookahead=1))
    assert [branch.selected for branch in root.branches] == [False, True]
    assert [worth_of(root)[(), "leader", index] for index in range(2)] == [0.0, 1.0]


def test_what_was_played_side_by_side_shares_the_weight_of_one_decision() -> None:
    root, _ = grown(errand(turns=2), by_number, shapes.greedy(2, lookahead=2))
    shares = {decision.path: decision.node.weight for decision in walk.tree_samples([Tree(Task("t", {}), root)])}
    assert [sum(share for path, share in shares.items() if len(path) == depth) for depth in range(6)] == [1.0] * 6
    assert [shares[path] for path in ((), (0,), (0, 1), (1, 1, 1))] == [1.0, 0.5, 0.25, 1.0]
    full, _ = grown(relay(), index_or_note, shapes.full(2))
    shares = {decision.path: decision.node.weight for decision in walk.tree_samples([Tree(Task("t", {}), full)])}
    assert {len(path): share for path, share in shares.items()} == {0: 1.0, 1: 0.5, 2: 0.25, 3: 0.125}


def test_a_branch_is_chosen_by_alpha_times_the_team_and_the_local_reward() -> None:
    """The local reward alone decides at alpha 0, the team's at a large alpha."""

    class Torn(Digit):
        async def step(self, actions: dict[str, str]) -> Reward:
            await super().step(actions)
            return Reward(team=float(actions["speaker"]), local={"speaker": -2.0 * float(actions["speaker"])})

    team, _ = scripted_team(Torn, by_number)
    for alpha, best in ((0.0, 0), (1.0, 0), (3.0, 2)):
        rollout = Rollout(Torn, team, shapes.greedy(3), alpha)
        root = asyncio.run(grow(Torn(Task("t", {"digit": 0})), rollout, 0))
        assert root is not None
        assert [branch.selected for branch in root.branches] == [index == best for index in range(3)]


def test_a_task_that_is_drawn_twice_in_a_step_is_played_twice() -> None:
    """Mistake: noise keyed by the task, so that the same tree comes twice."""
    team, sampler = scripted_team(Digit, by_number)
    task = Digit.tasks("train")[0]
    asyncio.run(grow_many([task, task], Rollout(Digit, team, shapes.greedy(2), 1.0), 7))
    first, second = (request.key for request in sampler.requests)
    assert first != second
    asyncio.run(grow_many([task], Rollout(Digit, team, shapes.greedy(2), 1.0), 7, first=1))
    assert sampler.requests[-1].key == second


def test_what_the_shape_leaves_behind_is_closed_and_in_the_end_the_episode() -> None:
    forks: list[Env] = []
    closed: list[Env] = []

    class Closing(Pair):
        def fork(self) -> "Closing":
            forks.append(super().fork())
            return forks[-1]  # type: ignore[return-value]

        def close(self) -> None:
            closed.append(self)

        async def step(self, actions: dict[str, str]) -> Reward:
            assert self not in closed
            return await super().step(actions)

    team, _ = scripted_team(Pair, lambda request, index: str(index))
    closing = Closing(Task("t", {}), 2)
    rollout = Rollout(lambda task: closing, team, shapes.greedy(3), 1.0)
    asyncio.run(grow_many([closing.task], rollout, 7))
    assert len(forks) == 6
    assert closed[-1] is closing
    assert len(closed) == 5  # two siblings at each of two decisions, and the whole


def test_who_acts_is_waited_for() -> None:
    class SlowStep(Digit):
        acts = False

        async def until_ready(self) -> None:
            await asyncio.sleep(0)
            self.acts = True

        def observe(self) -> dict[str, Observation]:
            assert self.acts
            return super().observe()

    team, _ = scripted_team(Digit, lambda request, index: "1")
    rollout = Rollout(SlowStep, team, shapes.greedy(2), 1.0)
    trees, failures = asyncio.run(grow_many(SlowStep.tasks("train")[:1], rollout, 7))
    assert (len(trees), failures) == (1, [])
