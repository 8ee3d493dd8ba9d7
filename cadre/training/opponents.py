"""Self-play against the past: a pool of the learner's earlier weights, which play the other seats (`team.opponents`).

Against its present self a policy may go round in circles, as what beats it now may lose to what it was before. So
fictitious self-play answers the mean of earlier policies (Heinrich et al., ICML 2015), and the prioritised form draws
those that are hardest to beat (AlphaStar, Vinyals et al., Nature 2019). A member is never trained, and what it writes
is compared with nobody (`cadre.advantages.batch.own_samples`).
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from cadre import random_keys
from cadre.config.experiment import Experiment
from cadre.rollout import walk
from cadre.runs.records import Rating
from cadre.settings.team import OpponentsConfig
from cadre.team import Metrics, Team, Weights
from cadre.training.checkpoint import OPPONENTS, TrainingState, checkpoint_name
from cadre.types import Tree

# Points that a rating moves at most by the games of one step against one member.
ELO_STEP = 32.0
# Part of a score that stays after a step's games; least weight of a member that is always beaten.
KEPT_SCORE, LEAST_WEIGHT = 0.8, 0.05


def draw_weights(members: Sequence[Rating], rule: str) -> list[float]:
    """Return how probable members are to be drawn, relative to each other: by `recency` 1 for the oldest, 2 for the
    next and so on; by `results` (1 - score)^2, the weight for hard opponents of AlphaStar, at least `LEAST_WEIGHT`."""
    if rule == "recency":
        return [1.0 + sum(other.step < member.step for other in members) for member in members]
    return [max((1.0 - member.score) ** 2, LEAST_WEIGHT) for member in members]


def expected_score(elo: float, opponent: float) -> float:
    """Return the mean score that two Elo ratings foretell."""
    return 1.0 / (1.0 + 10.0 ** ((opponent - elo) / 400.0))


def game_scores(path: walk.TreePath, learner: str) -> Iterator[tuple[str, float]]:
    """Yield each opponent that acted in an episode in which the learner did, and the learner's score: 1 if it earned
    more, 0.5 as much, 0 less."""
    players = {role: siblings[0].policy for node, _ in path for role, siblings in node.samples.items()}
    earned = {role: sum(branch.reward.local.get(role, 0.0) for _, branch in path) for role in players}
    for own in (role for role, policy in players.items() if policy == learner):
        for role, policy in players.items():
            if policy != learner:
                yield policy, 0.5 + 0.5 * ((earned[own] > earned[role]) - (earned[own] < earned[role]))


class OpponentPool:
    """The members with their ratings, and the drawing of who plays. Owned by the loop, lives as long as that.

    A member is a policy of the team, `NAME-1` and so on, whose weights are in `folder`. The ratings are the training
    state's own, so that a checkpoint has them; all draws are keyed by seed, step and position.
    """

    def __init__(
        self, experiment: Experiment, config: OpponentsConfig, folder: Path, ratings: dict[str, Rating]
    ) -> None:
        self.config, self._folder, self._ratings = config, folder, ratings
        self._slots, self._experiment = experiment.config.team.members, experiment
        (self._learner,) = set(experiment.roles.values())
        for name in ratings.keys() - {self._learner, *self._slots}:  # of a fork that keeps fewer
            del ratings[name]
        ratings.setdefault(self._learner, Rating(step=0))

    @classmethod
    def restored(cls, experiment: Experiment, run: Path, state: TrainingState) -> OpponentPool | None:
        """Return the pool of a training that begins in this state, with the weights of its checkpoint; None without."""
        if (config := experiment.config.team.opponents) is None:
            return None
        pool = cls(experiment, config, run / OPPONENTS, state.ratings)
        shutil.rmtree(run / OPPONENTS, ignore_errors=True)
        for name in pool.members:
            shutil.copytree(run / "checkpoints" / checkpoint_name(state.step) / name, run / OPPONENTS / name)
        return pool

    @property
    def members(self) -> dict[str, Rating]:
        """The present members by policy."""
        return {name: self._ratings[name] for name in self._slots if name in self._ratings}

    async def load(self, team: Team, step: int) -> None:
        """Load the members' weights into their samplers; a pool without any admits the learner as it is."""
        if not self.members:
            await self.admit(team, step)
        await team.load(Weights(name, member.step, self._folder / name) for name, member in self.members.items())

    async def admit(self, team: Team, step: int) -> None:
        """Add the learner as it is after `step` updates, in place of the oldest member if the pool is full."""
        members = self.members
        oldest = min(self._slots, key=lambda name: members[name].step if name in members else -1)
        shutil.rmtree(self._folder / oldest, ignore_errors=True)
        team.owner(self._learner).export(self._learner, self._folder / oldest)
        self._ratings[oldest] = Rating(step=step, elo=self._ratings[self._learner].elo)
        await team.load([Weights(oldest, step, self._folder / oldest)])

    def seats(self, step: int, position: int) -> Mapping[str, str]:
        """Return who plays beside the learner in the episodes of a task: the learner's seat alternates."""
        roles, members = [*self._experiment.roles], self.members
        own = roles[(step + position) % len(roles)]
        generator = random_keys.generator(self._experiment.config.train.seed, OPPONENTS, step, position)
        weights = draw_weights([*members.values()], self.config.draw)
        return {role: generator.choices([*members], weights)[0] for role in roles if role != own}

    def rate(self, trees: Sequence[Tree]) -> Metrics:
        """Rate the learner and its opponents by a step's games, and return the ratings as metrics. The games against
        one member count as one result, their mean, by which both move from where they were before the step."""
        scores: dict[str, list[float]] = defaultdict(list)
        for path in (path for tree in trees for path in walk.episodes(tree.root)):
            for name, score in game_scores(path, self._learner):
                scores[name].append(score)
        before = dict(self._ratings)
        elo = before[self._learner].elo
        for name, games in scores.items():
            gain = ELO_STEP * (fmean(games) - expected_score(elo, before[name].elo))
            score = KEPT_SCORE * before[name].score + (1.0 - KEPT_SCORE) * fmean(games)
            self._ratings[name] = Rating(step=before[name].step, elo=before[name].elo - gain, score=score)
            self._ratings[self._learner] = Rating(step=0, elo=self._ratings[self._learner].elo + gain)
        metrics = {f"{name}/elo": rating.elo for name, rating in self._ratings.items()}
        for name, member in self.members.items():
            metrics |= {f"{name}/score": member.score, f"{name}/from_step": float(member.step)}
        return metrics
