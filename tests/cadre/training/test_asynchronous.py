"""Sampling that runs ahead: which weights draw which step, that stopping loses nothing, and that 0 is as before."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from cadre.advantages.batch import build_batch
from cadre.config.engines import build_team
from cadre.config.experiment import Config
from cadre.config.resolve import resolve
from cadre.env import Env
from cadre.errors import ConfigError
from cadre.rollout.episodes import Failure, SampledTrees
from cadre.runs.folder import Run
from cadre.runs.progress import Progress
from cadre.runs.resume import fork_run
from cadre.team import Team, Weights
from cadre.training import loop
from cadre.training.asynchronous import SampledStep, StalenessLimit, StepQueue, read_sampled_steps, write_sampled_steps
from cadre.training.checkpoint import latest_checkpoint, read_state
from cadre.training.interrupt import Interrupt
from cadre.training.loop import Training, sample_step
from cadre.types import Reward, Task
from tests.helpers.slow import few_of
from tests.helpers.training import configured, lines, play, weights


def stale(speaker: Path, limit: int, steps: int = 4, **sections) -> Config:
    train = {"steps": steps, "tasks_per_step": 4, "max_staleness": limit, "checkpoint_every": 1, "trees_kept": 2}
    return configured(speaker, "Pair", ("one", "two"), train=train, **sections)


@pytest.mark.parametrize(
    ("limit", "version", "begun", "steps"),
    [(0, 0, 0, 1), (0, 3, 3, 1), (2, 0, 0, 3), (2, 1, 3, 1), (2, 1, 4, 0), (9, 7, 8, 2)],
)
def test_capacity_by_hand(limit: int, version: int, begun: int, steps: int) -> None:
    """(most + version + 1) - begun, and no step of the number 10 or above."""
    assert StalenessLimit(limit, end=10).capacity(version, begun) == steps


def by_hand(chosen: Config, limit: int) -> list[dict[str, bytes]]:
    """The plainest loop: the weights after every update, where step n is sampled before update n - most + 1."""
    experiment = resolve(chosen)
    team = build_team(experiment, train=True)
    training = Training(experiment, Run(Path("unwritten"), chosen), team, Progress(Console(quiet=True), 4))
    created, waiting, steps = [], [], chosen.train.steps

    async def run() -> None:
        for version in range(steps):
            for step in range(steps):
                if max(0, step - limit) == version:
                    waiting.append(await sample_step(training, step))
            await team.update(build_batch(waiting.pop(0).trees, experiment.plan, team, {}).sequences)
            created.append(
                {
                    name: value.detach().numpy().tobytes()
                    for name, value in team.samplers["two"].parameters("two").items()
                }
            )

    asyncio.run(run())
    team.close()
    return created


@pytest.mark.parametrize("limit", few_of([0, 1, 2], [0, 2]))
def test_a_run_is_what_the_rule_says_to_the_bit(speaker: Path, tmp_path: Path, quiet: Console, limit: int) -> None:
    """The loop is synchronous at 0; otherwise step n is drawn from the weights of n - max_staleness updates."""
    chosen = stale(speaker, limit)
    team, run = play(chosen, tmp_path / "run", quiet)
    learned = {name: value.detach().numpy().tobytes() for name, value in team.samplers["two"].parameters("two").items()}
    assert learned == by_hand(chosen, limit)[-1]
    behind = [line["left/staleness"] for line in run.metrics()]
    assert (
        behind == [line["rollout/staleness_max"] for line in run.metrics()] == [min(step, limit) for step in range(4)]
    )


def test_staleness_changes_what_is_learned(speaker: Path) -> None:
    synchronous, ahead = by_hand(stale(speaker, 0), 0), by_hand(stale(speaker, 1), 1)
    assert synchronous[0] == ahead[0]
    assert synchronous[1] != ahead[1]


def parted(chosen: Config) -> Team:
    """The experiment's team with samplers that have weights of their own, in engines of their own."""
    experiment = resolve(chosen)
    learning, playing = build_team(experiment, train=True), build_team(experiment)
    return Team(learning.assignment, playing.samplers, learning.sampling, learning.learners, own_weights=True)


@pytest.mark.slow  # samplers apart are held against the same run below, where they are stopped too
@pytest.mark.parametrize("limit", [0, 2])
def test_samplers_apart_give_the_same_run(
    speaker: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Sampling and learning then go on at once; evaluations and checkpoints in between change nothing."""
    chosen = stale(speaker, limit, evaluate={"tasks": 4, "every": 2})
    _, trained_run = play(chosen, tmp_path / "whole", quiet)
    monkeypatch.setattr(loop, "build_team", lambda experiment, **_: parted(experiment.config))
    _, run = play(chosen, tmp_path / "parted", quiet)
    for name in ("metrics.jsonl", "evaluations.jsonl", "trees.jsonl"):
        assert lines(run.folder, name) == lines(trained_run.folder, name)
    assert weights(run.folder, "one") == weights(trained_run.folder, "one")


@pytest.mark.parametrize(("at", "separate"), few_of([(0, False), (0, True), (2, False), (2, True)], [(2, True)]))
def test_a_run_that_was_stopped_goes_on_as_if_unbroken(
    speaker: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch, at: int, separate: bool
) -> None:
    """Stopped while it samples, with steps in flight: they are in the checkpoint, and learned from after a resume."""
    chosen = stale(speaker, 2, steps=5, evaluate={"tasks": 4})
    _, trained_run = play(chosen, tmp_path / "whole", quiet)
    if separate:
        monkeypatch.setattr(loop, "build_team", lambda experiment, **_: parted(experiment.config))
    real, interrupts = sample_step, []
    monkeypatch.setattr(loop, "Interrupt", lambda **_: interrupts.append(Interrupt()) or interrupts[-1])

    async def stopping(training: Training, step: int) -> SampledTrees:
        if step == at + 2:
            interrupts[-1]()
        return await real(training, step)

    monkeypatch.setattr(loop, "sample_step", stopping)
    play(chosen, tmp_path / "run", quiet)
    stored = read_state(latest_checkpoint(tmp_path / "run" / "checkpoints"))
    assert stored.step < 5
    assert [step.step for step in stored.sampled_steps] == [stored.step + i for i in range(len(stored.sampled_steps))]
    assert separate or len(stored.sampled_steps) == (2 if at else 0)
    monkeypatch.setattr(loop, "sample_step", real)
    play(chosen, tmp_path / "run", quiet, resume=True)
    for name in ("metrics.jsonl", "evaluations.jsonl", "trees.jsonl"):
        assert lines(tmp_path / "run", name) == lines(trained_run.folder, name)
    assert weights(tmp_path / "run", "two") == weights(trained_run.folder, "two")


def test_ctrl_c_within_an_environment_loses_no_step_that_was_sampled_ahead(
    speaker: Path, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistake: the call is broken, its step is lost, and so are all updates since the last checkpoint."""
    chosen = stale(speaker, 1, evaluate={"tasks": 0})
    chosen = chosen.model_copy(update={"train": chosen.train.model_copy(update={"checkpoint_every": 0})})
    _, whole = play(chosen, tmp_path / "whole", quiet)
    monkeypatch.setattr(loop, "build_team", lambda experiment, **_: parted(experiment.config))
    environment, begun = resolve(chosen).env_spec.env_class, []
    sampling, stepping = sample_step, environment.step

    async def noting(training: Training, step: int) -> SampledTrees:
        await asyncio.sleep(1.0 * (step == 2))  # until the update before it is made, and the loop waits for this step
        begun.append(step)
        return await sampling(training, step)

    async def interrupted(self: Env, actions: dict[str, str]) -> Reward:
        if begun[-1] == 2:
            begun.append(0)
            signal.raise_signal(signal.SIGINT)
        return await stepping(self, actions)

    monkeypatch.setattr(loop, "sample_step", noting)
    monkeypatch.setattr(environment, "step", interrupted)
    play(chosen, tmp_path / "run", quiet)
    stored = read_state(latest_checkpoint(tmp_path / "run" / "checkpoints"))
    assert 0 < stored.step < 4
    play(chosen, tmp_path / "run", quiet, resume=True)
    assert weights(tmp_path / "run", "two") == weights(whole.folder, "two")


def test_steps_in_flight_are_those_of_their_settings(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    """A fork with other settings samples anew; one without goes on with what it has."""
    _, trained_run = play(stale(speaker, 2, evaluate={"tasks": 0}), tmp_path / "run", quiet)
    for name, changes, behind in (("same", [], [0, 1, 2, 2]), ("other", ["learner.learning_rate=1e-4"], [0, 0, 1, 2])):
        branch = fork_run(trained_run.folder, 1, tmp_path / name, changes)
        play(branch.config, branch.folder, quiet, resume=True)
        assert [line["rollout/staleness_max"] for line in branch.metrics()] == behind
    assert weights(tmp_path / "same", "one") == weights(trained_run.folder, "one")


def test_trees_come_back_from_a_checkpoint_as_they_were(speaker: Path, tmp_path: Path, quiet: Console) -> None:
    chosen = stale(speaker, 0)
    experiment = resolve(chosen)
    team = build_team(experiment, train=True)
    training = Training(experiment, Run(tmp_path, chosen), team, Progress(quiet, 4))
    samples = asyncio.run(sample_step(training, 0))
    failed = Failure(Task("t", {"grid": "S.G"}), "raised", "ValueError", "Traceback", True)
    steps = (SampledStep(3, samples, 1.5), SampledStep(4, SampledTrees([], [failed], 2), 0.25))
    write_sampled_steps(tmp_path, steps)
    assert read_sampled_steps(tmp_path) == steps
    team.close()


class Gate:
    """Sampling that goes on when it is let."""

    def __init__(self) -> None:
        self.open: dict[int, asyncio.Event] = {}
        self.begun: list[int] = []

    async def __call__(self, step: int) -> SampledTrees:
        self.begun.append(step)
        await self.open.setdefault(step, asyncio.Event()).wait()
        return SampledTrees([], [])


class Silent:
    """A learner and a sampler in one, that only count weights."""

    policies = ("p",)

    def __init__(self) -> None:
        self.version, self.loaded = 0, []

    async def publish(self, policy: str) -> Weights:
        return Weights(policy, self.version)

    async def load(self, weights: Weights) -> None:
        self.loaded.append(weights.version)


def test_new_weights_wait_for_the_step_that_is_being_sampled() -> None:
    both, gate = Silent(), Gate()
    ahead = StepQueue(gate, Team({}, {"p": both}, {}, [both], own_weights=True), StalenessLimit(1, end=9))

    async def run() -> None:
        await ahead.sync_weights()
        gate.open[0] = gate.open[2] = asyncio.Event()
        gate.open[0].set()
        assert (await ahead.next_step(0)).step == 0
        await asyncio.sleep(0)
        assert gate.begun == [0, 1]
        both.version = 1
        await ahead.sync_weights()
        assert both.loaded == [0]
        taking = asyncio.create_task(ahead.next_step(1))
        await asyncio.sleep(0.01)
        assert (gate.begun, both.loaded) == ([0, 1], [0])
        gate.open[1].set()
        assert (await taking).step == 1
        await asyncio.sleep(0.01)
        assert (gate.begun, both.loaded) == ([0, 1, 2], [0, 1])

    asyncio.run(run())


@pytest.mark.parametrize("lost", [False, True])
def test_at_the_end_a_step_of_earlier_weights_is_waited_for(lost: bool) -> None:
    """One of the present weights is not: it can be sampled again."""
    both, gate = Silent(), Gate()
    ahead = StepQueue(gate, Team({}, {"p": both}, {}, [both], own_weights=True), StalenessLimit(2, end=9))

    async def run() -> tuple[bool, Sequence[int]]:
        gate.open[0] = asyncio.Event()
        gate.open[0].set()
        await ahead.next_step(0)
        await asyncio.sleep(0)
        taking = asyncio.create_task(ahead.next_step(1))
        await asyncio.sleep(0)
        taking.cancel()
        closing = asyncio.create_task(ahead.close(1))
        await asyncio.sleep(0.01)
        assert not closing.done()
        if lost:
            ahead._started[0].task.cancel()
        else:
            gate.open[1].set()
            await asyncio.sleep(0.01)
            gate.open[2].set()
        return await closing, [step.step for step in ahead.sampled()]

    assert asyncio.run(run()) == ((False, []) if lost else (True, [1, 2]))


def test_a_loss_that_corrects_nothing_is_refused(speaker: Path) -> None:
    plain = {"algorithm": {"name": "magrpo", "k": 4}}
    with pytest.raises(ConfigError, match=r"train\.max_staleness: got 1 .* loss\.correction=truncate"):
        resolve(stale(speaker, 1, **plain))
    resolve(stale(speaker, 1, loss={"correction": "truncate"}, **plain))
