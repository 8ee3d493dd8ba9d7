"""`cadre prove`: is a team worth its tokens? Trains it and single agents alike, and says wins, loses or undecided.

The plan is written before anything runs (PLAN_FILE) and holds all that could be chosen afterwards to please: methods
with all of their settings, seeds, tokens, held-out tasks, and the comparison that counts. A folder has one plan.

    methods    team-L0        the team, one policy for all roles: as many trained weights as the agent, so this counts
               team-L1        a policy for each role (adapters; team-L2 if whole models are trained)
               agent          one agent with the team's algorithm
               agent-grpo     one agent with GRPO over whole episodes
               best-of-n      the untrained agent, as many episodes a task as the tokens for testing allow, of which one
                              has to solve it: a bound, as it takes somebody who knows the answer
               vote           the same episodes; the most frequent last answer counts
    agent-gepa     with --prompts: the untrained agent, whose prompt GEPA evolves by as many tokens (`cadre
                   optimise-prompts`) instead of its weights
    search     every trained method has the learning rate that does best on tasks of the training split, of the same
               choices, each tried by one training of half of the tokens; with one choice there is no search
    figures    every seed plays the held-out tasks once at temperature 0 after training

Files of a folder: plan.json, METHOD/seed-N (a run), METHOD/seed-N.json (its outcomes), METHOD/seed-N.episodes.jsonl
(all prompts and completions), result.json, index.html and verdict.svg.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console

from cadre.concurrency import run_coroutine
from cadre.config.experiment import Experiment, parse
from cadre.config.resolve import resolve
from cadre.env import Env
from cadre.envs.spec import EnvSpec, name_of
from cadre.errors import ConfigError
from cadre.evaluation.evaluate import Repeats, evaluate_sampled, group_by_task, select_tasks
from cadre.evaluation.loaded_team import LoadedTeam, load_team
from cadre.file_limits import read_json
from cadre.files import to_json
from cadre.plugins import package
from cadre.rollout.walk import TreePath
from cadre.runs.folder import git_commits
from cadre.settings.user_code import reference_to
from cadre.settings.yaml_file import Raw, flatten
from cadre.types import Task, answer_text
from cadre_analysis.compare import difference_interval, table_interval
from cadre_analysis.prompts import optimise_on
from cadre_analysis.prove_report import TEAM, UNTRAINED, MethodFigures, Plan, Result, plan_lines, write_result
from cadre_analysis.trainings import claim, play_tasks, publish_outcome, train_to_end
from cadre_analysis.verdict import decide

ONE_AGENT = "one-agent"
MAX_STEPS = 100_000  # where it is not known how many updates the tokens allow
# The seed of the trainings by which learning rates are chosen; no reported training has it.
SEARCH_SEED = 1_000_000
SEARCH_TASKS = 100
GEPA_TASKS = 40  # of the training split, by which prompts are optimised, or all if there are fewer
MAX_DRAWS = 256
# What a recipe says of the length and the evaluation of its own training, which are the plan's here.
NOT_OF_A_METHOD = ("steps", "max_tokens", "seed", "stop_at_success", "patience")


@dataclass(frozen=True)
class Request:
    """The options of a call; None for what follows from the task."""

    seeds: int
    tokens: int
    held_out: int
    first: int
    rates: tuple[float, ...]  # factors of the recipe's learning rate that are tried
    agent: str | None  # the environment of the single agent
    test_tokens: int | None  # for each held-out task
    without: tuple[str, ...] = ()  # methods that are not trained
    prompts: bool = False  # whether the team has to beat an agent with optimised prompts too


# ---- The plan


def make_plan(experiment: Experiment, request: Request, env: type[Env] | None = None) -> Plan:
    """Return the plan of a team's experiment. Raises ConfigError for a task that a single agent plays already, and for
    what no method can be trained with."""
    usable_rates = request.rates and all(0.0 < rate < math.inf for rate in request.rates)
    test_tokens = 1 if request.test_tokens is None else request.test_tokens
    if min(request.seeds - 1, request.tokens, request.held_out - 1, test_tokens) < 1 or not usable_rates:
        raise ConfigError(
            f"prove: got {request.seeds} seeds, {request.tokens} tokens, {request.held_out} held-out tasks, "
            f"{request.test_tokens} tokens for testing and the rates {', '.join(map(str, request.rates)) or 'none'}; "
            "expected two seeds and two tasks or more, a token or more, and one or more rates above 0. Raise them."
        )
    if len(experiment.roles) < 2:
        raise ConfigError(
            f"prove: {experiment.config.env} has the one role {', '.join(experiment.roles)}; expected a team of two or "
            "more roles, which is compared with one agent. Name the team's task."
        )
    policies = {name: experiment.policies[name] for name in experiment.roles.values()}
    kinds = {policy.model_dump_json(exclude={"sampling", "learner"}) for policy in policies.values()}
    if len(kinds) > 1 or any(policy.frozen for policy in policies.values()):
        raise ConfigError(
            f"prove: {experiment.config.env} has the policies {', '.join(policies)}, some of them frozen or of other "
            "models; expected policies that are alike and all learn, as the methods give every role the same model. "
            "Give the roles one policy."
        )
    held_out = select_tasks(experiment.held_out_tasks, request.held_out, request.first)
    if len(held_out) < request.held_out:
        raise ConfigError(
            f"prove: got {request.held_out} held-out tasks from {request.first} on, and there are "
            f"{len(experiment.held_out_tasks):,}; expected no more. Lower --held-out."
        )
    if request.prompts:
        package("gepa", "prompts", "--prompts:")
    methods, left_out = {}, {}
    possible = {**_teams(experiment), **_agents(experiment, request.agent, env)}
    for name in request.without:
        if name in (TEAM, "agent-grpo") or possible.pop(name, None) is None:
            optional = ", ".join(other for other in possible if other not in (TEAM, "agent-grpo"))
            raise ConfigError(f"--without: got {name!r}; expected one of {optional or 'none'}. Name one of them.")
        left_out[name] = "As --without asks."
    for name, raw in possible.items():
        try:
            played = resolve(parse(raw, _class_for(raw, env)), _class_for(raw, env))
            _check_same_tasks(played, held_out, request)
            methods[name] = raw
        except ConfigError as error:
            if name in (TEAM, "agent-grpo"):
                raise
            left_out[name] = str(error)
    rate = experiment.learners[next(iter(experiment.roles.values()))].learning_rate
    longest = max(sampling.max_tokens for sampling in experiment.sampling.values())
    return Plan(
        task=experiment.config.env,
        methods=methods,
        prompted={"agent-gepa": methods["agent-grpo"]} if request.prompts else {},
        left_out=left_out,
        rates=sorted({float(f"{rate * factor:.6g}") for factor in request.rates}),
        seeds=list(range(request.seeds)),
        tokens=request.tokens,
        search_tokens=max(1, request.tokens // 2) if len(request.rates) > 1 or _has_schedule(methods[TEAM]) else 0,
        test_tokens=request.test_tokens or 8 * longest,
        held_out=request.held_out,
        first=request.first,
        comparison=f"held-out success of {TEAM} minus that of each single agent, over seeds and tasks: the team wins "
        "if it is better than all at 95%, and loses if one is better than it, at 95% corrected for their number",
        code=git_commits(),
    )


def _check_same_tasks(method: Experiment, held_out: Sequence[Task], request: Request) -> None:
    """Raise ConfigError unless a method is tested on tasks of the same names as the team."""
    tasks = method.held_out_tasks[request.first : request.first + request.held_out]
    names, expected = [task.id for task in tasks], [task.id for task in held_out]
    if names != expected:
        index, name = next(
            ((at, name) for at, name in enumerate(names) if expected[at : at + 1] != [name]), (len(names), "no more")
        )
        raise ConfigError(
            f"prove: held-out task {request.first + index} of {method.config.env} is {name}; expected "
            f"{expected[index]}, as the team is tested on it, in the same order. Give both the same tasks, or name "
            "another --agent."
        )


def _has_schedule(raw: Raw) -> bool:
    """Return True if something rises or falls over the updates of a training, whose number has to be known then."""
    schedules = {value for key, value in flatten(raw) if key.endswith(".schedule") and key != "train.schedule"}
    return bool(schedules - {"constant"})


def _common(experiment: Experiment) -> Raw:
    """Return what all methods share."""
    raw: Raw = experiment.config.model_dump(mode="json", exclude_unset=True)
    train = {key: value for key, value in raw.get("train", {}).items() if key not in NOT_OF_A_METHOD}
    held_out = {key: value for key, value in raw.get("evaluate", {}).items() if key == "settings"}
    # The methods' policies have other names than the recipe's.
    _remove(raw, "cluster", "policies")
    return raw | {"train": train, "evaluate": held_out | {"tasks": 0}}


def _remove(raw: Raw, section: str, key: str) -> None:
    if isinstance(raw.get(section), dict):
        raw[section] = {name: value for name, value in raw[section].items() if name != key}


def _policy(experiment: Experiment, raw: Raw) -> Any:
    """Return the settings of the first role's policy but its learning rate, which is searched for."""
    policy = raw["team"]["policies"][next(iter(experiment.roles.values()))]
    if not isinstance(policy, dict) or not isinstance(policy.get("learner"), dict):
        return policy
    return policy | {"learner": {key: value for key, value in policy["learner"].items() if key != "learning_rate"}}


def _teams(experiment: Experiment) -> dict[str, Raw]:
    """Return the team with one policy for all roles, and with one for each."""
    raw, roles = _common(experiment), list(experiment.roles)
    policy = _policy(experiment, raw)
    team = {key: value for key, value in raw["team"].items() if key not in ("policies", "roles")}
    shared = {"policies": {"shared": policy}, "roles": dict.fromkeys(roles, "shared")}
    separate = {"policies": dict.fromkeys(roles, policy), "roles": {role: role for role in roles}}
    has_adapters = isinstance(policy, dict) and policy.get("lora")
    return {
        TEAM: raw | {"team": team | shared},
        "team-L1" if has_adapters else "team-L2": raw | {"team": team | separate},
    }


def _agents(experiment: Experiment, chosen: str | None, env: type[Env] | None) -> dict[str, Raw]:
    """Return one agent with the algorithm of the team, and one with GRPO over whole episodes."""
    raw, declared = _common(experiment), experiment.env_spec.declared
    _remove(raw, "credit", "role_weights")
    name = chosen or declared.one_agent
    if name:
        settings = raw.get("settings", {})
    else:
        of = experiment.config.env if env is None else reference_to(env, env.__name__)
        name, settings = ONE_AGENT, {"of": of, "settings": raw.get("settings", {})}
        settings |= {"prompts": raw["team"]["prompts"]} if raw["team"].get("prompts") else {}
    roles = EnvSpec(name, settings).roles
    if len(roles) > 1:
        raise ConfigError(
            f"--agent: {name} has the roles {', '.join(roles)}; expected an environment of one role, which does the "
            "whole task. Name one."
        )
    algorithm = raw["algorithm"]
    k = algorithm.get("k", experiment.config.algorithm.k)
    # Widths by decision are those of the team's decisions.
    k = max(k) if isinstance(k, list | tuple) else max(k.values()) if isinstance(k, dict) else k
    team = {"policies": {"agent": _policy(experiment, raw)}, "roles": dict.fromkeys(roles, "agent")}
    agent = raw | {"env": name, "settings": settings, "team": team}
    agents = {"agent": algorithm | {"k": k}, "agent-grpo": {"name": "grpo", "k": k}}
    if agents["agent"] == agents["agent-grpo"]:
        del agents["agent"]  # the team's algorithm is GRPO, so that both are one method
    return {name: agent | {"algorithm": algorithm} for name, algorithm in agents.items()}


def _class_for(raw: Raw, env: type[Env] | None) -> type[Env] | None:
    """Return the team's class for a method that plays it, if it need not be searched for."""
    return env if env is not None and raw["env"] == name_of(env) else None


# ---- Running it


@dataclass(frozen=True)
class Work:
    """An experiment that is being worked on: where, by which plan, with which class of the task, telling whom."""

    folder: Path
    plan: Plan
    env: type[Env] | None
    console: Console

    def run(self) -> Result:
        """Do all that is not done yet, and return the result."""
        untrained = list(self.plan.methods)[-1]
        self.play_untrained("team", TEAM)
        self.play_untrained("agent", untrained)
        found = {name: self.search(name) for name in self.plan.methods}
        rates = {name: rate for name, (rate, _) in found.items()}
        outcomes: dict[str, list[Raw]] = {name: [] for name in [*found, *self.plan.prompted]}
        # A seed of all methods before the next seed: whoever looks at an experiment half way finds whole seeds.
        for seed in self.plan.seeds:
            for name, (rate, steps) in found.items():
                outcomes[name].append(self.outcome(name, f"seed-{seed}", seed, rate, steps))
            for name in self.plan.prompted:
                outcomes[name].append(self.optimise(name, seed))
        return make_result(self.folder, self.plan, rates, outcomes, self.draw(untrained))

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def search(self, name: str) -> tuple[float, int]:
        """Return the learning rate that does best on tasks of the training split, the lowest of equal ones, and the
        updates a training may have: a tenth more than the tokens allow if schedules fall, else any number."""
        if not self.plan.search_tokens:
            return self.plan.rates[0], MAX_STEPS
        reports = {rate: self.outcome(name, f"rate-{rate:g}", SEARCH_SEED, rate, MAX_STEPS) for rate in self.plan.rates}
        best = max(reports, key=lambda rate: (reports[rate]["success"], reports[rate]["reward"], -rate))
        if not _has_schedule(self.plan.methods[name]):
            return best, MAX_STEPS
        tokens_per_update = reports[best]["sampled"] / reports[best]["updates"]
        return best, math.ceil(1.1 * self.plan.tokens / tokens_per_update)

    def outcome(self, name: str, run_name: str, seed: int, rate: float, steps: int) -> Raw:
        """Return the report of a training on the tasks that it is tested on, with its tokens; train and test it unless
        that is done."""
        file = self.folder / name / f"{run_name}.json"
        if not file.exists():
            self.say(f"{name}, {run_name}")
            is_search, raw = seed == SEARCH_SEED, self.plan.methods[name]
            tokens = self.plan.search_tokens if is_search else self.plan.tokens
            train = raw["train"] | {"max_tokens": tokens, "steps": steps, "seed": seed}
            learner = raw.get("learner", {}) | {"learning_rate": rate}
            env = _class_for(raw, self.env)
            sections = {} if env is None else {"env": env}
            method, run = raw | {"learner": learner, "train": train}, file.with_suffix("")
            with closing(train_to_end(self.console, method, sections, run)) as trained:
                tasks = trained.experiment.training_tasks[-SEARCH_TASKS:] if is_search else self._held_out(trained)
                metrics, rollout = trained.metrics(), trained.experiment.evaluation(trained.team)
                sampled = sum(line["rollout/tokens"] for line in metrics)
                play_tasks(rollout, tasks, file, sampled=sampled, updates=len(metrics), rate=rate)
        return read_json(file)

    def optimise(self, name: str, seed: int) -> Raw:
        """Return the report of the agent with the prompt that GEPA finds, with the tokens that this took."""
        self.say(f"{name}, seed-{seed}")
        raw, folder = self.plan.prompted[name], self.folder / name / f"seed-{seed}"
        env = _class_for(raw, self.env)
        experiment, tested = resolve(parse(raw, env), env), {"held_out": self.plan.held_out, "first": self.plan.first}
        tasks = min(GEPA_TASKS, len(experiment.training_tasks))
        training = {"tokens": self.plan.tokens, "tasks": tasks, "seed": seed, "writer": None}
        found = optimise_on(self.console, experiment, folder, training | tested)
        return read_json(found.played) | {"sampled": found.tokens}

    def _held_out(self, team: LoadedTeam) -> Sequence[Task]:
        return select_tasks(team.experiment.held_out_tasks, self.plan.held_out, self.plan.first)

    def _untrained(self, name: str) -> LoadedTeam:
        env = _class_for(self.plan.methods[name], self.env)
        return load_team(resolve(parse(self.plan.methods[name], env), env), None)

    def play_untrained(self, side: str, name: str) -> None:
        """Write the report of a side before training."""
        file = self.folder / "untrained" / f"{side}.json"
        if not file.exists():
            self.say(f"{side}, untrained")
            with closing(self._untrained(name)) as team:
                play_tasks(team.experiment.evaluation(team.team), self._held_out(team), file)

    def draw(self, name: str) -> Raw:
        """Return by task whether one of the untrained agent's episodes succeeds, and whether its most frequent answer
        does; draw as many as the tokens for testing allow, unless that is done."""
        file = self.folder / "untrained" / "draws.json"
        if not file.exists():
            self.say("agent, untrained, several episodes a task")
            with closing(self._untrained(name)) as team:
                tasks, settings = self._held_out(team), team.experiment.sampling.values()
                temperature = max(sampling.temperature for sampling in settings) or 1.0
                rollout = team.experiment.evaluation(team.team)
                first, _ = run_coroutine(evaluate_sampled(rollout, tasks, Repeats(1, temperature)))
                count = max(1, min(MAX_DRAWS, int(self.plan.test_tokens / max(1.0, first.tokens))))
                report, trees = run_coroutine(evaluate_sampled(rollout, tasks, Repeats(count, temperature)))
                played = group_by_task(trees, tasks, count)
                best = {task: float(any(path[-1][1].success for path in paths)) for task, paths in played.items()}
                votes = {task: vote(paths) for task, paths in played.items()}
                fields = {"draws": count, "best-of-n": best, "vote": votes, "tokens": report.tokens * count}
                publish_outcome(file, report.as_dict() | fields, trees)
        return read_json(file)


def vote(paths: Sequence[TreePath]) -> float:
    """Return 1.0 if the most frequent last answer of some episodes of one task solves it, 0.0 if not and for none.

    Answers are compared without regard to space. Of equally frequent ones the first counts.
    """

    def answer(path: TreePath) -> str:
        node, branch = path[-1]
        texts = (answer_text(node.samples[role][index]) for role, index in sorted(branch.choice.items()))
        return " ".join(" ".join(texts).split())

    if not paths:
        return 0.0
    ((winner, _),) = Counter(map(answer, paths)).most_common(1)
    return float(next(path[-1][1].success for path in paths if answer(path) == winner))


# ---- The result


def make_result(
    folder: Path, plan: Plan, rates: Mapping[str, float], outcomes: Mapping[str, Sequence[Raw]], draws: Raw
) -> Result:
    """Return the result of outcomes by method and seed."""
    names = list(outcomes[TEAM][0]["outcomes"])
    tables = {
        name: np.array([[report["outcomes"][task][0] for task in names] for report in reports])
        for name, reports in outcomes.items()
    }
    tables |= {name: np.array([[draws[name][task] for task in names]]) for name in UNTRAINED}
    methods = {}
    for name, table in tables.items():
        methods[name] = MethodFigures(
            success=table_interval(table, np.random.default_rng(0)),
            by_seed=tuple(table.mean(axis=1).tolist()),
            rate=rates.get(name),
            tokens=fmean(report["sampled"] for report in outcomes[name]) if name in outcomes else None,
            test_tokens=fmean(report["tokens"] for report in outcomes.get(name, [draws])),
        )
    untrained = {side: read_json(folder / "untrained" / f"{side}.json") for side in ("team", "agent")}
    before = {side: (report["success"], report["low"], report["high"]) for side, report in untrained.items()}
    verdict = decide(tables[TEAM], {name: tables[name] for name in plan.agents})
    beside = {
        name: difference_interval(tables[TEAM], tables[name], np.random.default_rng(0), False, True)
        for name in UNTRAINED
    }
    return Result(folder, plan, methods, before, verdict, beside)


def prove_on(console: Console, experiment: Experiment, folder: Path, request: Request, env: type[Env] | None) -> Result:
    """Carry an experiment out in a folder, from where it stands, and write its result there."""
    present = make_plan(experiment, request, env)
    plan = claim(folder, present)
    other = f"The plan was written with {to_json(plan.code)}; what is left is trained with {to_json(present.code)}."
    for line in [*plan_lines(plan), *([other] if plan.code != present.code else [])]:
        console.print(line, markup=False, highlight=False)
    result = Work(folder, plan, env, console).run()
    write_result(result)
    return result
