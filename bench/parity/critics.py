"""Stand-ins for value heads, and trees that are judged by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from bench.parity.trees import inner, leaf
from cadre.advantages.batch import Plan, make_sequences
from cadre.advantages.critic import Critic, Reads, judge_samples
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import Comparison, samples_of
from cadre.algorithms import Algorithm, plan_of
from cadre.rollout import walk
from cadre.settings import CriticConfig
from cadre.team import Metrics, Team
from cadre.types import Branch, Message, Node, Observation, Sample, Sampling, Task, Tool, TrainingSequence, Tree


@dataclass
class Learner:
    """Values from a table of prompts' texts or from a function; token ids are bytes. Remembers what it was asked."""

    policies: tuple[str, ...] = ("shared",)
    says: Callable[[TrainingSequence, int], float] = lambda datum, position: 0.0
    reference: Callable[[TrainingSequence], tuple[float, ...]] = lambda datum: datum.logprobs
    present: Callable[[TrainingSequence], tuple[float, ...]] = lambda datum: datum.logprobs
    value_requests: list[TrainingSequence] = field(default_factory=list)
    referred: list[TrainingSequence] = field(default_factory=list)

    def encode(self, policy: str, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        return tuple("|".join(message.content for message in messages).encode())

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        self.value_requests += data
        return [tuple(self.says(datum, position) for position in datum.targets.at) for datum in data]

    def reference_logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        self.referred += data
        return [self.reference(datum) for datum in data]

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        self.referred += data
        return [self.present(datum) for datum in data]


def by_text(table: Mapping[str, float]) -> Callable[[TrainingSequence, int], float]:
    """The value of a sequence is that of the prompt that it begins with."""
    return lambda datum, position: table[bytes(datum.token_ids[: position + 1]).decode()]


def node(turn: int, siblings: Mapping[str, int], branches: list[Branch], tag: str, **shown: str) -> Node:
    """Prompts read `TAG ROLE`, and sibling i of a role says `TAG ROLE i`."""

    def draw(role: str, index: int) -> Sample:
        text = f"{tag} {role} {index}"
        prompt = tuple(f"{tag} {role}".encode())
        return Sample(role, "shared", text, prompt, (3, 0), (-0.5, -0.25), "stop", 5)

    samples = {role: tuple(draw(role, index) for index in range(count)) for role, count in siblings.items()}
    observations = {role: Observation(role, (Message("user", f"{tag} {role}"),)) for role in siblings}
    return Node(turn, observations, samples, tuple(branches), **shown, round=turn)


def team_of(*learners: Learner, roles: str = "abc", **assignment: str) -> Team:
    assigned = {role: assignment.get(role, "shared") for role in [*roles, *assignment]}
    return Team(assigned, {}, {role: Sampling(0.7) for role in assigned}, learners)


def rule(reads: Reads = "own", gae_lambda: float = 0.5, **options) -> Critic:
    gamma = options.pop("token_gamma", 1.0)
    return Critic(reads, CriticConfig(**options), gae_lambda, gamma, whiten=False)


def judged(root: Node, comparison: Comparison, critic: Critic, team: Team) -> tuple[list[TrainingSequence], Metrics]:
    """The sequences of an update by a critic, and its metrics."""
    samples, critic_data, metrics = judge_samples(samples_of([Tree(Task("t", {}), root)]), comparison, critic, team)
    return [*make_sequences(samples, team.sampling), *critic_data], metrics


def taught(
    root: Node, values: Mapping[str, float], chosen: Critic, gamma: float = 1.0, **numbers: float
) -> dict[str, tuple[float, float]]:
    """(advantage, target) of every sample by its text, from the sequences that the update gets."""
    learner = Learner(says=by_text(values))
    credit = comparison_of("reward_to_go", "node", "none", "none", gamma=gamma, **numbers)
    data, _ = judged(root, credit, chosen, team_of(learner))
    samples = list(walk.samples(root))
    assert [datum.token_ids for datum in data] == [sample.prompt_ids + sample.token_ids for sample in samples]
    pairs = [(datum.advantages[-1], datum.targets.returns[0]) for datum in data if datum.targets is not None]
    return dict(zip((sample.text for sample in samples), pairs, strict=True))


def chain(*pays: float) -> Node:
    """One episode of role a, a reward a turn; the turns are called 0, 1, ..."""
    below: Node | None = None
    for turn in reversed(range(len(pays))):
        branch = leaf({"a": 0}, pays[turn]) if below is None else inner({"a": 0}, below, pays[turn])
        below = node(turn, {"a": 1}, [branch], str(turn))
    assert below is not None
    return below


def sequential() -> Node:
    """Two turns in which a acts before b: local 1, team 2; local -1 with team 1, team 4."""
    last = node(1, {"b": 1}, [leaf({"b": 0}, 4.0)], "late")
    second = node(1, {"a": 1}, [inner({"a": 0}, last, 1.0, a=-1.0)], "late")
    middle = node(0, {"b": 1}, [inner({"b": 0}, second, 2.0)], "early")
    return node(0, {"a": 1}, [inner({"a": 0}, middle, a=1.0)], "early")


def crossed() -> Node:
    """Two roles at once in all pairs, paying 1, 3, 0 and 2; the first pair goes on to 0, 4, 4 and 8."""
    both = {"a": 2, "b": 2}
    late = [leaf({"a": i, "b": j}, pay) for (i, j), pay in zip(PAIRS, (0.0, 4.0, 4.0, 8.0), strict=True)]
    child = node(1, both, late, "late")
    early = [leaf({"a": i, "b": j}, pay) for (i, j), pay in zip(PAIRS[1:], (3.0, 0.0, 2.0), strict=True)]
    return node(0, both, [inner({"a": 0, "b": 0}, child, 1.0), *early], "early")


PAIRS = [(0, 0), (0, 1), (1, 0), (1, 1)]


def asked(root: Node, chosen: Critic, team: Team) -> tuple[list[TrainingSequence], list[str]]:
    """The data of an update, and the texts that the critic was shown."""
    credit = comparison_of("reward_to_go", "node", "none", "none")
    data, _ = judged(root, credit, chosen, team)
    return data, [
        bytes(sequence.token_ids).decode() for learner in team.learners for sequence in learner.value_requests
    ]


def played_by(root: Node, **policies: str) -> Node:
    samples = {
        r: tuple(replace(sample, policy=policies[r]) for sample in siblings) for r, siblings in root.samples.items()
    }
    below = [branch.child and played_by(branch.child, **policies) for branch in root.branches]
    branches = tuple(replace(branch, child=child) for branch, child in zip(root.branches, below, strict=True))
    return replace(root, samples=samples, branches=branches)


def one_answer(score: float) -> Tree:
    """Prompt "p a", three tokens, a score at the end."""
    root = node(0, {"a": 1}, [leaf({"a": 0}, score)], "p")
    answer = replace(root.samples["a"][0], token_ids=(7, 8, 1), logprobs=(-0.5, -0.25, -1.0))
    return Tree(Task("t", {}), replace(root, samples={"a": (answer,)}))


def named(name: str, **options) -> Plan:
    return plan_of(TypeAdapter(Algorithm).validate_python({"name": name, **options}))
