"""Command lines that are wrong, each to be answered by one paragraph, exit code 2 and no traceback.

A line is written as in a shell; `prepare` makes the files and folders that it names. RUN is a run of one step with the
roles of the tests' game Pair (left, right), MODEL the folder of a tiny model, PLAIN a recipe that would train it. With
a star are those that `make test` calls: one for each place in the code that refuses something.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

TESTS = Path(__file__).parents[2]

LINES = r"""
# The program and its commands.
* tran
--bogus
version
train --help-me
trian plan-path
eval
play
export
check
data
preference-pairs

# train: which recipe.
* train
* train nowhere
train plan-pathh
train nowhere.yaml
train .
train /
train RUN
train ''
* train bytes.yaml
* train twice.yaml
train twice-inside.yaml
* train list.yaml
train number.yaml
train empty.yaml
train open.yaml
train tabs.yaml
train tagged.yaml
train deep.yaml
train keys.yaml
* train bad-date.yaml
train anchors.yaml
* train no-env.yaml
* train no-team.yaml
* train no-algorithm.yaml
* train extra.yaml
* train null-train.yaml
train text.txt
train --run
* train plan-path plan-path
train plan-path --resumed
train plan-path --dry

# train: overrides that are none.
train plan-path steps
train plan-path =3
train plan-path .=3
* train plan-path train.=3
train plan-path .steps=3
train plan-path train..steps=3
* train plan-path train.steps.more=3
train plan-path env.more=3
train plan-path nothing=3
train plan-path trian.steps=3
train plan-path train.stps=3
train plan-path train=3
train plan-path train=null
train plan-path team=null
* train plan-path 'train.steps=['
train plan-path 'train.steps={'
train plan-path 'train.steps="'
train plan-path "train.steps='"
train plan-path 'train.steps=@'
train plan-path 'train.steps=!!python/object:os.system'
train plan-path 'train.steps=*alias'
train plan-path 'train.steps=&a [*a]'
* train plan-path 'nobody.*.x=3'
* train plan-path 'train.steps=3 # steps'
train plan-path 'train.steps=#3'
train plan-path team.prompts.tool=

# train: values of the wrong kind or size.
train plan-path train.steps=many
train plan-path train.steps=0
train plan-path train.steps=-1
train plan-path train.steps=1.5
train plan-path train.steps=
train plan-path train.steps=null
train plan-path train.steps=[1]
train plan-path train.steps={a: 1}
train plan-path train.steps=true
train plan-path train.seed=yes
train plan-path learner.learning_rate=on
train plan-path learner.betas=[true, 0.9]
train plan-path credit.role_weights={tool: true}
train plan-path algorithm.alpha=true
* train plan-path settings.turns=true
train plan-path team.policies.shared.learner.epochs=true
train plan-path train.steps=1e400
train plan-path train.steps=.inf
train plan-path train.steps=.nan
train plan-path train.tasks_per_step=0
train plan-path train.tasks_per_step=x
train plan-path train.seed=x
train plan-path train.seed=0.5
train plan-path train.max_tokens=-1
train plan-path train.trees_kept=-1
train plan-path train.checkpoint_every=often
train plan-path evaluate.tasks=-1
train plan-path evaluate.first=-1
train plan-path evaluate.every=x
train plan-path evaluate.every=-5
* train plan-path train.stop_at_success=0.9
train plan-path train={steps: 3, stop_at_success: 0.9}
train plan-path --dry-run train.stop_at_success=0.9
train plan-path trackers.project=foo
train plan-path trackers={project: foo}
train plan-path trackers.names=[] trackers.project=foo
train plan-path train.trees_megabytes=9 train.trees_kept=0
train PLAIN --resume --run RUN evaluate.every=5
train plan-path sampling.temperature=0
train plan-path sampling.temperature=-1
train plan-path sampling.temperature=hot
train plan-path sampling.temperature=.nan
train plan-path sampling.top_p=0
train plan-path sampling.top_p=2
* train plan-path sampling.top_p=0.5
train plan-path sampling.top_k=-1
train plan-path sampling.top_k=5
train plan-path sampling.max_tokens=0
train plan-path sampling.max_tokens=x
train plan-path learner.learning_rate=0
train plan-path learner.learning_rate=-1
train plan-path learner.learning_rate=fast
train plan-path learner.learning_rate=.nan
train plan-path learner.learning_rate=.inf
train plan-path learner.schedule=linear
train plan-path learner.warmup_steps=-1
train plan-path learner.weight_decay=-1
train plan-path learner.betas=0.9
train plan-path learner.betas=[0.9]
train plan-path learner.max_grad_norm=0
train plan-path learner.epochs=0
train plan-path learner.minibatches=0
train plan-path learner.tokens_per_microbatch=0
train plan-path learner.pack=tight
train plan-path learner.gradient_checkpointing=perhaps
train plan-path loss.ratio=half
train plan-path loss.clip_low=1
train plan-path loss.clip_low=-1
train plan-path loss.clip_high=0
train plan-path loss.dual_clip=0.5
train plan-path loss.aggregate=sum
train plan-path loss.divisor=0
train plan-path loss.entropy=-1
train plan-path loss.kl=-1
train plan-path loss.correction=some
train plan-path loss.correction_level=word
train plan-path credit.truncated=drop
train plan-path credit.overlong_buffer=-1
* train plan-path credit.overlong_buffer=1000
train plan-path credit.overlong_factor=0
train plan-path credit.overlong_factor=1
* train plan-path credit.role_weights={nobody: 1}
train plan-path credit.role_weights={tool: -1}
* train plan-path credit.role_weights={tool: 0, planner: 0}
* train plan-path team.policies.shared.frozen=true
train plan-path --dry-run team.policies.shared.frozen=true
warm-start plan-path --on examples.jsonl team.policies.shared.frozen=true
train plan-path sandbox.level=open
train plan-path sandbox.cgroup=maybe

# train: algorithms.
train plan-path algorithm=atgrpo
train plan-path algorithm=null
train plan-path algorithm=3
train plan-path algorithm=[]
train plan-path algorithm.name=nothing
train plan-path algorithm.k=0
train plan-path algorithm.k=-1
train plan-path algorithm.k=x
train plan-path algorithm.k=[]
train plan-path algorithm.k={}
train plan-path algorithm.k=1.5
train plan-path algorithm.k=true
* train plan-path algorithm.k=100000000
train plan-path algorithm.k=[100000000]
* train plan-path algorithm.k={tool: 4}
* train plan-path algorithm.k={tool: 4, plannr: 4}
train plan-path algorithm.k={tool: 100000000, planner: 2}
train plan-path algorithm={name: at_grpo, k: 4, select: best}
train plan-path algorithm.alpha=x
train plan-path algorithm.kl=-1
train plan-path algorithm.gamma=2
train plan-path algorithm.critic.level=word
* train plan-path algorithm=rlhf
train plan-path algorithm={name: ippo, gamma: 2}
train plan-path algorithm={name: ippo, gae_lambda: -1}
train plan-path algorithm={name: ippo, critic: {level: word}}
train plan-path algorithm={name: mappo, critic: {policy: 3}}
* train plan-path algorithm={name: ippo, estimate: reward_to_go, gae_lambda: 0.5}
* train plan-path algorithm={name: magrpo, k: 1000, joint: cross}
train plan-path algorithm={name: custom}
* train plan-path algorithm={name: custom, shape: greedy, returns: episode, group: node, baseline: mean, scale: std}
train plan-path algorithm={name: custom, shape: round, returns: step, group: node, baseline: mean, scale: std}
* train plan-path-rlhf algorithm.reward_model=nowhere

# train: teams and models.
* train plan-path team.roles={tool: shared}
train plan-path team.roles={tool: shared, planner: nobody}
* train plan-path team.roles={tool: shared, planner: shared, third: shared}
train plan-path team.roles=[]
train plan-path team.policies={}
train plan-path team.policies.unused=seed
* train plan-path team.policies.shared=nowhere
train plan-path team.policies.shared=./nowhere
train plan-path team.policies.shared=/nowhere/at/all
train plan-path team.policies.shared=a/b/c
* train plan-path team.policies.shared=some/model
eval plan-path team.policies.shared=some/model
* eval plan-path evaluate.tasks=2
eval plan-path evaluate.first=2
eval plan-path sampling.temperature=0.6
eval plan-path sampling.top_p=0.9
eval plan-path sampling.top_k=20
eval plan-path train.seed=4
eval plan-path train={seed: 4}
eval plan-path evaluate={tasks: 2}
eval plan-path evaluate={every: 0, first: 2}
eval plan-path team.policies.shared.sampling.temperature=0.6
eval plan-path team.policies.*.sampling.top_p=0.9
play plan-path sampling.temperature=5
play plan-path team.policies.shared.sampling.top_k=5
play plan-path evaluate.first=9
play plan-path evaluate={tasks: 9}
play plan-path train.seed=4
check plan-path --model some/model
train plan-path team.policies.shared=''
train plan-path team.policies.shared=3
train plan-path team.policies.shared.dtype=float8
train plan-path team.policies.shared.lora={rank: 0}
train plan-path team.policies.shared.lora={rank: 4, beta: 1}
train plan-path team.policies.shared.frozen=perhaps
train plan-path team.policies.shared.url=http://localhost:1/v1
train plan-path 'team.policies.shared={model: seed, frozen: true, lora: {rank: 4}}'
train plan-path team.policies.shared.learner={rate: 1}
train plan-path team.policies.shared.sampling={top_p: 0.5}
train plan-path team.policies.shared.trust=true

# train: environments and their settings.
* train plan-path env=nowhere
train plan-path env=plan-pth
* train plan-path env=nowhere.py:Env
* train plan-path env=text.txt:Env
* train plan-path env=raising.py:Env
train plan-path env=syntax.py:Env
train plan-path env=missing.py:Nothing
train plan-path env=missing.py:Roles
train plan-path env=missing.py:Tasks
train plan-path env=missing.py:Fails
train plan-path env=3
train plan-path env=
train plan-path settings.turn=2
train plan-path settings.turns=x
train plan-path settings.turns=0
train plan-path settings.turns=-3
train plan-path settings.size=0
train plan-path settings.size=-4
train plan-path settings.size=1
train plan-path settings.size=1000000
train plan-path settings.prompts=long
train plan-path settings.reward=much
train plan-path settings=3
train boxoban
* train maths-qwen3-1.7b settings.source=nowhere
train code-qwen3-1.7b settings.source=nowhere
train tldr-qwen3-1.7b settings.source=nowhere

# train: where to write, and going on.
* train PLAIN --run text.txt
* train PLAIN --run text.txt/below
train PLAIN --run full
train PLAIN --run RUN
train PLAIN --run /proc/nowhere
* train PLAIN --resume
* train PLAIN --resume-if-exists
train PLAIN --resume-if-exists --resume --run RUN
* train PLAIN --resume --run nowhere
train PLAIN --resume --run full
train PLAIN --resume --run text.txt
train PLAIN --resume --run broken-run
* train PLAIN --resume --run RUN algorithm.k=3
* train plan-path --resume --run RUN
train nowhere --resume --run RUN
* train PLAIN --force --run half-run
train --resume --run half-warm
train PLAIN --resume --run half-warm

# warm-start.
warm-start
* warm-start PLAIN
warm-start nowhere --on examples.jsonl
* warm-start PLAIN --on nowhere.jsonl
* warm-start PLAIN --on text.txt
warm-start PLAIN --on bytes.yaml
warm-start PLAIN --on full
warm-start PLAIN --on empty.yaml
* warm-start PLAIN --on fields.jsonl
* warm-start PLAIN --on half-character.jsonl
* warm-start PLAIN --on nobody-speaks.jsonl
warm-start PLAIN --on examples.jsonl --own 3
warm-start PLAIN --on examples.jsonl --run full
warm-start PLAIN --own 1 --run full
warm-start PLAIN --own 1 --run text.txt
warm-start PLAIN --on examples.jsonl --steps 0
warm-start PLAIN --on examples.jsonl train.steps=x
* warm-start --resume
* warm-start --resume --run RUN
warm-start --resume --run nowhere
* warm-start PLAIN --resume --run half-warm
warm-start --resume --run half-warm --steps 3
warm-start --resume --run half-warm --on examples.jsonl
warm-start --resume --run half-warm --own 7

# status.
status
* status nowhere
status full
status text.txt
status half-run --jsn
status damaged
status other

# fork.
fork
* fork RUN
fork RUN --at x
fork RUN --at -1
* fork RUN --at 99
fork nowhere --at 1
fork half-run --at 1
fork RUN --at 1 --run full
fork RUN --at 1 --run text.txt/below
fork RUN --at 1 train.steps=x
fork RUN --at 1 team.roles={left: shared}
fork RUN --at 1 nonsense

# train --dry-run.
train nowhere --dry-run
train plan-path --dry-run train.steps=x
train plan-path --dry-run algorithm.k=100000000
train plan-path --dry-run team.policies.shared=nowhere
train plan-path --dry-run --run new
train plan-path --dry-run --run RUN --resume
train plan-path --dry-run --run RUN --resume-if-exists
* train plan-path --dry-run --gpus '2x8'
train plan-path --dry-run --gpus '2x8 X100'
train plan-path --gpus '2x8 H100'

# eval.
eval nowhere
eval ''
eval text.txt
eval full
eval broken-run
* eval half-run
eval RUN --tasks 0
eval RUN --tasks -1
eval RUN --tasks x
eval RUN --first -1
* eval RUN --first 99999
eval RUN --base --untrained left
* eval RUN --assign left=right,left=left
eval RUN --samples 0
* eval RUN --samples 4
eval RUN --samples 4 --temperature -1
eval RUN --temperature x
eval RUN --samples 4 --temperature 0.5 --k 8
eval RUN --samples 4 --temperature 0.5 --k 0
eval RUN --k 1
eval RUN --all --tasks 3
eval RUN --seed x
eval evaluate-text.yaml
eval evaluate-list.yaml settings.turns=2
eval RUN --assign left
eval RUN --assign left=nobody
eval RUN --assign nobody=shared
eval RUN --assign left=shared,=
* eval RUN --untrained nobody
eval RUN --untrained left,
* eval RUN --episodes text.txt
eval RUN --episodes text.txt/below.jsonl
eval RUN --episodes full
eval RUN --bogus
eval RUN settings.turn=1
eval RUN sampling.max_tokens=x
eval RUN nonsense
eval plan-path env=nowhere
* eval MODEL
eval MODEL env=nowhere
eval plan-path team.policies.shared=nowhere

# play.
play nowhere
play text.txt
play full
play half-run
play RUN --task -1
play RUN --task 99999
play RUN --task x
play RUN --step 0
* play RUN --step 7
play RUN --step x
play RUN --step 1 --task 9
play half-run --step 1
play RUN --assign left=nobody
play RUN --step 1 --assign left=shared
play RUN --step 1 --base
play RUN --step 1 sampling.max_tokens=1

# view.
view RUN --export page.html --port 80
view RUN --export page.html --token abc
view RUN --megabytes 3
view RUN --export text.txt
view nowhere

# check.
check nowhere
check sandbox turns=2
check sandbox --model seed
check sandbox --step-seconds 1
check plan-pth
check nowhere.py:Env
check nowhere.py
check text.txt
check text.txt:Env
check raising.py:Env
check syntax.py:Env
check missing.py:Nothing
check missing.py:
check :Env
* check missing.py:Roles
check missing.py:Fails
check plan-path turns
check plan-path turn=2
check plan-path turns=x
check plan-path turns=yes
check plan-path turns=0
check plan-path size=0
check plan-path size=-1
check plan-path size=1
check plan-path size=1000000
check plan-path size=[
check plan-path walls=1
check plan-path walls=2
check sokoban size=0
check sokoban boxes=1000
check sokoban boxes=0
check sudoku size=3
check sudoku size=0
check sudoku empty=1000
check maths source=nowhere
check code source=nowhere
check tldr source=nowhere
check plan-path --model nowhere
check plan-path --model text.txt
* check plan-path --model empty-model

# data.
* data nowhere
data mth500
* data math500
data math500 --from nowhere
data math500 --from text.txt
data math500 --from full
data math500 --bogus
data aime24 --split test --from full
data aime24 --from full --out new.jsonl --json
* data good.jsonl

# export.
export RUN
export RUN shared
* export RUN nobody out
export RUN shared full
export RUN shared text.txt
export RUN shared text.txt/below
export nowhere shared out
export half-run shared out
export RUN shared out --merg

# preference-pairs.
preference-pairs plan-path
preference-pairs nowhere --out pairs.jsonl
preference-pairs PLAIN --out text.txt
preference-pairs PLAIN --out text.txt/below.jsonl
preference-pairs PLAIN --out /proc/nowhere/pairs.jsonl
preference-pairs PLAIN --out pairs.jsonl --tasks 0
* preference-pairs plan-path --out pairs.jsonl --joint
preference-pairs PLAIN train.steps=x --out pairs.jsonl

"""

FILES = {
    "text.txt": "Only words.\n",
    "empty.yaml": "",
    "list.yaml": "- env: plan-path\n",
    "number.yaml": "3\n",
    "open.yaml": "env: [plan-path\n",
    "tabs.yaml": "env:\n\tplan-path\n",
    "tagged.yaml": "env: !!python/object/apply:os.system ['true']\n",
    "deep.yaml": "env: " + "[" * 5_000 + "]" * 5_000 + "\n",
    "keys.yaml": "? [a, b]\n: 3\n",
    "bad-date.yaml": "env: 2026-99-99\n",
    "anchors.yaml": "env: &a [*a]\n",
    "twice.yaml": "env: plan-path\nenv: sokoban\nteam: {}\nalgorithm: grpo\n",
    "twice-inside.yaml": (
        "env: plan-path\nteam: {policies: {a: seed, a: seed}, roles: {tool: a, planner: a}}\nalgorithm: grpo\n"
    ),
    "no-env.yaml": "team: {policies: {a: seed}, roles: {tool: a, planner: a}}\nalgorithm: grpo\n",
    "no-team.yaml": "env: plan-path\nalgorithm: grpo\n",
    "no-algorithm.yaml": "env: plan-path\nteam: {policies: {a: seed}, roles: {tool: a, planner: a}}\n",
    "extra.yaml": (
        "env: plan-path\nteam: {policies: {a: seed}, roles: {tool: a, planner: a}}\nalgorithm: grpo\nmore: 1\n"
    ),
    "null-train.yaml": (
        "env: plan-path\nteam: {policies: {a: seed}, roles: {tool: a, planner: a}}\nalgorithm: grpo\ntrain:\n"
    ),
    "raising.py": "raise RuntimeError('not today')\n",
    "syntax.py": "class Env(\n",
    "missing.py": (
        "from cadre.env import Env\n"
        "from cadre.types import Task\n"
        "class Roles(Env):\n    pass\n"
        "class Tasks(Env):\n    roles = ('tool', 'planner')\n"
        "class Fails(Env):\n"
        "    roles = ('tool', 'planner')\n"
        "    def __init__(self, task):\n        raise KeyError('digit')\n"
        "    def observe(self):\n        return {}\n"
        "    async def step(self, actions):\n        return None\n"
        "    success = False\n"
        "    @classmethod\n    def tasks(cls, split):\n        return [Task(split, {'split': split})]\n"
    ),
    "evaluate-text.yaml": "env: plan-path\nteam: seed\nalgorithm: grpo\nevaluate: hello\n",
    "evaluate-list.yaml": "env: plan-path\nteam: seed\nalgorithm: grpo\nevaluate: {settings: [a]}\n",
    "examples.jsonl": '{"role": "left", "prompt": "1", "answer": "2"}\n',
    "half-character.jsonl": '{"role": "left", "prompt": "1", "answer": "\\ud83d"}\n',
    "nobody-speaks.jsonl": '{"role": "left", "prompt": [{"role": 5, "content": null}], "answer": "2"}\n',
    "half-warm/warm_start/settings.json": '{"steps": 9, "examples": 1, "learning_rate": 0.1, "seed": 0}\n',
    "damaged/status.json": "{",
    "other/status.json": "{}",
    "fields.jsonl": '{"prompt": "a", "better": "b"}\n',
    "full/something.txt": "here\n",
    "empty-model/config.json": "{}\n",
    "broken-run/config.yaml": "env: [\n",
}


def calls(starred_only: bool = False) -> list[list[str]]:
    """The arguments of every call."""
    lines = [line for line in LINES.splitlines() if line and not line.startswith("#")]
    lines = [line.removeprefix("* ") for line in lines if line.startswith("* ") or not starred_only]
    return [shlex.split(line) if "'" in line or '"' in line else words(line) for line in lines]


def words(line: str) -> list[str]:
    """The words of a line, braces and brackets keeping theirs together."""
    results: list[str] = []
    depth = 0
    for word in line.split(" "):
        if depth:
            results[-1] += f" {word}"
        else:
            results.append(word)
        depth += word.count("{") - word.count("}")
    return results


def plain_recipe(model: Path) -> str:
    """A recipe that would train the tiny model for a step."""
    recipe = {
        "env": f"{TESTS}/helpers/games.py:Pair",
        "team": {"policies": {"shared": str(model)}, "roles": {"left": "shared", "right": "shared"}},
        "algorithm": {"name": "grpo", "k": 2},
        "sampling": {"max_tokens": 2},
        "train": {"steps": 1, "tasks_per_step": 1},
        "evaluate": {"tasks": 0},
    }
    return json.dumps(recipe)


def prepare(folder: Path, model: Path) -> None:
    """Everything that the calls name, in `folder`, but RUN: `cadre train PLAIN --run RUN` makes it there."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    (folder / "bytes.yaml").write_bytes(b"env: \xff\xfe\n")
    (folder / "PLAIN").write_text(plain_recipe(model))
    (folder / "MODEL").symlink_to(model)
    (folder / "half-run").mkdir()
    for name in ("half-run", "half-warm"):
        (folder / name / "config.yaml").write_text(plain_recipe(model))
