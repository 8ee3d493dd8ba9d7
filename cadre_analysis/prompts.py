"""`cadre optimise-prompts`: GEPA evolves the system messages of a team's roles (`team.prompts`); no weights change.

GEPA (arXiv 2507.19457, the package `gepa`) keeps a pool of prompts by role. In a round it plays three training tasks
with prompts of the pool, and a model that is shown what one role saw, answered and earned writes a new prompt for it.
If that earns more on the three tasks, it is played on the tasks that choose, and joins the pool.

Files of a folder: plan.json, sampled.jsonl, before.json and after.json (held-out tasks, with all prompts and
completions beside them), recipe.yaml, result.json. GEPA's own record of its state is a pickle, so it writes none:
whatever was sampled is a line of sampled.jsonl, and a call that goes on makes GEPA's choices again, which follow from
the seed, with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console

from cadre import random_keys
from cadre.advantages.returns import role_reward
from cadre.concurrency import run_coroutine
from cadre.config.experiment import Experiment
from cadre.engines.openai import OpenAISampler
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, PromptError
from cadre.evaluation.evaluate import group_by_task, mean_reward, select_tasks
from cadre.evaluation.loaded_team import load_team
from cadre.files import OpenRecord, to_json, write_text_atomically
from cadre.plugins import package
from cadre.rollout.episodes import grow_many
from cadre.rollout.shapes import independent
from cadre.rollout.walk import TreePath
from cadre.runs import jsonl
from cadre.runs.folder import RunLock
from cadre.settings.yaml_file import Raw, dump_yaml
from cadre.statistics import Interval
from cadre.team import Team
from cadre.types import Message, Observation, Sample, Sampling, answer_text
from cadre_analysis.compare import difference_interval
from cadre_analysis.prove_report import percent, points
from cadre_analysis.trainings import claim, play_tasks

WRITING = Sampling(temperature=0.7, max_tokens=1_000)  # of new prompts, each with a 40th of the tokens at most
SHOWN_CHARS, SHOWN_TURNS = 1_500, 3  # of an episode, to the model that writes them
IDLE_ROUNDS = 25  # in a row without a sampled token: nothing can be improved, or written


@dataclass(frozen=True)
class OptimisedPrompts:
    """The prompts by role that earn most on training tasks, which `recipe` has, and held-out success before and after;
    the tokens that were sampled to find them, and in how many rounds."""

    recipe: Path
    played: Path  # the report of the held-out tasks after it
    prompts: dict[str, str]
    before: Interval
    after: Interval
    difference: Interval
    tokens: int
    rounds: int

    def lines(self) -> list[str]:
        """Return what there is to print."""
        return [
            f"held-out success before {percent(self.before)}, after {percent(self.after)}: {points(self.difference)}",
            f"{self.tokens:,} tokens in {self.rounds} rounds. Intervals are at 95%, over tasks alone.",
            f"{self.recipe} has the prompts; cadre train, eval and prove take it.",
        ]


@dataclass
class Optimiser:
    """One optimisation: how GEPA plays tasks (its adapter), and has new prompts written.

    known  answers by question that were sampled so far, by calls before too
    spent  tokens of the answers that this call has used
    """

    experiment: Experiment
    team: Team
    plan: Raw
    journal: Path
    console: Console
    known: dict[str, Raw]
    spent: dict[str, int] = field(default_factory=dict)
    by_round: list[int] = field(default_factory=list)  # the tokens spent before each round
    error: Exception | None = None
    propose_new_texts: None = None  # GEPA asks `write`

    def record(self, question: str, answer: Raw) -> None:
        jsonl.append(self.journal, {"question": question, **answer})
        self.known[question] = answer

    def answer(self, question: str) -> Raw:
        self.spent[question] = self.known[question]["tokens"]
        return self.known[question]

    def evaluate(self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """Return the rewards of training tasks, named by their index, with prompts by role: an episode of each at
        temperature 0."""
        questions = {index: to_json([candidate, index]) for index in batch}
        if new := [index for index, question in questions.items() if question not in self.known]:
            rollout = self.experiment.evaluation(self.team.tempered(0.0))
            make = with_texts(self.experiment.env_spec, candidate).make
            rollout = replace(rollout, make=make, shape=independent(1), alpha=1.0)
            tasks = [self.experiment.training_tasks[index] for index in new]
            key = random_keys.key(self.plan["seed"], "prompts")
            trees, _ = run_coroutine(grow_many(tasks, rollout, key, stop_early=False))
            for index, paths in zip(new, group_by_task(trees, tasks).values(), strict=True):
                # An episode that fails, as with a prompt that is too long, earns as little as any did.
                least = min((known["reward"] for known in self.known.values() if "reward" in known), default=0.0)
                roles = {role: [describe(path, role, text) for path in paths] for role, text in candidate.items()}
                samples = [sample for path in paths for node, _ in path for (sample,) in node.samples.values()]
                answer = {"reward": mean_reward(paths) if paths else least, "roles": roles}
                self.record(questions[index], answer | {"tokens": sum(map(count_tokens, samples))})
        answers = [self.answer(questions[index]) for index in batch]
        rewards = [answer["reward"] for answer in answers]
        return package("gepa").EvaluationBatch(outputs=answers, scores=rewards, trajectories=answers)

    def make_reflective_dataset(self, candidate: dict[str, str], played: Any, roles: list[str]) -> dict[str, list[Raw]]:
        """Return what the model that writes new prompts is shown of episodes, by role."""
        return {role: [shown for answer in played.trajectories for shown in answer["roles"][role]] for role in roles}

    def write(self, prompt: str) -> str:
        """Return a completion of GEPA's request for a new prompt. Where this raises GEPA goes on, and `is_done` raises
        the error, but for a request that exceeds the context."""
        number = len(self.by_round)
        question = to_json(["write", number, prompt])
        if question not in self.known:
            try:
                sample = run_coroutine(self.sample_writer(Message("user", prompt), number))
            except Exception as error:
                self.error = None if isinstance(error, PromptError) else error
                raise
            self.record(question, {"text": answer_text(sample), "tokens": count_tokens(sample)})
        return str(self.answer(question)["text"])

    async def sample_writer(self, request: Message, number: int) -> Sample:
        role, policy = next(iter(self.team.assignment.items()))
        length = min(WRITING.max_tokens, 1 + self.plan["tokens"] // 40)
        team = replace(self.team, sampling={role: replace(WRITING, max_tokens=length)})
        if self.plan["writer"]:
            sampler = OpenAISampler(**{"key_variable": "OPENAI_API_KEY", **self.plan["writer"]})
            team = replace(team, samplers={policy: sampler})
        key = random_keys.key(self.plan["seed"], "write", number)
        (sample,) = await team.sample(Observation(role, (request,)), 1, key, None)
        return sample

    def is_done(self, state: Any) -> bool:
        """Return whether the tokens are spent, or many rounds took none. GEPA asks before every round."""
        if self.error is not None:
            raise self.error
        self.by_round.append(sum(self.spent.values()))
        tokens, best = self.by_round[-1], max(state.program_full_scores_val_set)
        counts = f"{tokens:,} of {self.plan['tokens']:,} tokens"
        line = f"round {len(self.by_round) - 1}: {counts}, mean reward {best:.3g} on the tasks that choose"
        self.console.print(line, markup=False, highlight=False)
        return tokens >= self.plan["tokens"] or self.by_round[-1 - IDLE_ROUNDS : -IDLE_ROUNDS] == [tokens]


def with_texts(spec: EnvSpec, prompts: dict[str, str]) -> EnvSpec:
    """Return an environment whose roles see these system messages and no others."""
    return EnvSpec(spec.declared, spec.settings, spec.central, prompts)


def count_tokens(sample: Sample) -> int:
    """Return the tokens of a completion; of an endpoint's, whose tokens are not known, a quarter of its characters."""
    return len(sample.token_ids) or 1 + len(sample.text) // 4


def describe(path: TreePath, role: str, prompt: str) -> Raw:
    """Return an episode as the model that writes prompts is shown it: the first turns of one role."""
    turns: list[Raw] = []
    for node, branch in path:
        answers = {name: answer_text(node.samples[name][index])[:SHOWN_CHARS] for name, index in branch.choice.items()}
        if role in answers and len(turns) < SHOWN_TURNS:
            shown = "\n\n".join(message.content for message in node.observations[role].messages[-2:])
            turn: Raw = {"shown": shown.removeprefix(prompt).strip()[-SHOWN_CHARS:], "answer": answers.pop(role)}
            turn |= {"answers of the others at once": answers} if answers else {}
            turns.append(turn | {"reward of this turn": f"{role_reward(branch, role, 1.0):g}"})
    total, solved = mean_reward([path]), "solved" if path[-1][1].success else "not solved"
    return {"role": f"{role}, one of a team", "turns": turns, "feedback": f"{solved}; the rewards sum to {total:g}"}


def optimise_on(console: Console, experiment: Experiment, folder: Path, plan: Raw) -> OptimisedPrompts:
    """Carry an optimisation out in a folder, from where it stands, and write its result there. Raises ConfigError
    without the package gepa, and for a plan that cannot be.

    The plan has the numbers of `tokens`, training `tasks`, tasks that are `held_out` from the `first` on, the `seed`,
    and the `writer`: None, or `model`, `url` and perhaps `key_variable` of an endpoint.
    """
    gepa = package("gepa", "prompts", "optimise-prompts:")
    raw, training = experiment.config.model_dump(mode="json", exclude_unset=True), experiment.training_tasks
    tasks = select_tasks(experiment.held_out_tasks, plan["held_out"], plan["first"])
    if min(plan["tokens"], plan["tasks"] - 1, len(tasks) - 1) < 1 or plan["tasks"] > len(training):
        raise ConfigError(
            f"optimise-prompts: got {plan['tokens']} tokens, {plan['tasks']} training and {len(tasks)} held-out tasks; "
            f"expected a token or more, two tasks or more of each, at most {len(training):,} to train on. Change it."
        )
    writer = plan["writer"]
    if writer and not (
        isinstance(writer, Mapping) and {"model", "url"} <= {*writer} <= {"model", "url", "key_variable"}
    ):
        expected = "expected the model and the url of an endpoint, as in {model: M, url: http://localhost:8000/v1}"
        raise ConfigError(f"writer: got {writer!r:.200}; {expected}. Write them.")
    claim(folder, OpenRecord(recipe=raw, **plan))
    own = {role: experiment.config.team.prompts.get(role, "") for role in experiment.roles}
    with RunLock(folder), closing(load_team(experiment, None)) as loaded:

        def play_held_out(prompts: dict[str, str], name: str) -> Raw:
            make = with_texts(experiment.held_out, prompts).make
            return play_tasks(replace(experiment.evaluation(loaded.team), make=make), tasks, folder / name)

        before = play_held_out(own, "before.json")
        journal = folder / "sampled.jsonl"
        known = {record.pop("question"): record for record in jsonl.records(journal)}
        optimiser = Optimiser(experiment, loaded.team, plan, journal, console, known)
        drawn = random_keys.generator(plan["seed"], "tasks").sample(range(len(training)), plan["tasks"])
        found = gepa.optimize(
            seed_candidate=own,
            trainset=drawn[: plan["tasks"] // 2],
            valset=drawn[plan["tasks"] // 2 :],
            adapter=optimiser,
            reflection_lm=optimiser.write,
            stop_callbacks=optimiser.is_done,
            skip_perfect_score=False,  # rewards have no known maximum
            track_best_outputs=False,
            logger=SimpleNamespace(log=lambda text: None),
            seed=plan["seed"],
        )
        # Prompts that are the old ones are not played again.
        played = "before.json" if found.best_candidate == own else "after.json"
        after = play_held_out(found.best_candidate, played)

    prompts = {role: text for role, text in found.best_candidate.items() if text}
    write_text_atomically(folder / "recipe.yaml", dump_yaml(raw | {"team": raw["team"] | {"prompts": prompts}}))
    tables = [np.array([[outcome[0] for outcome in report["outcomes"].values()]]) for report in (before, after)]
    result = OptimisedPrompts(
        recipe=folder / "recipe.yaml",
        played=folder / played,
        prompts=prompts,
        before=(before["success"], before["low"], before["high"]),
        after=(after["success"], after["low"], after["high"]),
        difference=difference_interval(tables[1], tables[0], np.random.default_rng(0), True, True),
        tokens=optimiser.by_round[-1],
        rounds=len(optimiser.by_round) - 1,
    )
    write_text_atomically(folder / "result.json", to_json(asdict(result), default=str) + "\n")
    return result
