"""The robots' table: reference, random and greedy plans, and exploits.

    python -m lab.robots [references baselines exploits] [--kinds sort carry] [--tasks 500] [--write]
    python -m lab.robots examples FILE [--kinds handover]

references  so many tasks of every kind at the default settings, and a fifth as many at harder ones, by a planner
baselines   the same tasks by random plans, and by greedy robots: each takes what is nearest, straight for its goal
exploits    what policies earn that try to be paid for nothing, as a share of what the reference earns
examples    lines for `cadre warm-start`: compact prompts with the reference's plans and with plans of mixed quality

Needs MuJoCo. `--write` appends `worlds.robots.*` to results/worlds.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count as counter
from itertools import islice
from pathlib import Path
from typing import Any

from bench.common import record
from bench.hostile import texts
from cadre_tasks.worlds.robots import Robots
from cadre_tasks.worlds.robots_table import (
    BIN,
    CELLS,
    CLEARANCE,
    ENDS,
    LATTICE,
    POSES,
    VERBS,
    WAIT,
    Action,
    Layout,
    Point,
    Scene,
    find_faults,
    owners,
    segment_distance,
    target,
)

KINDS: tuple[str, ...] = tuple(VERBS)
HARD: dict[str, dict[str, Any]] = {
    "handover": {"robots": 3, "objects": 3, "pillars": 2},
    "sort": {"robots": 3, "objects": 4, "pillars": 1},
    "sweep": {"robots": 3, "objects": 3},
    "carry": {"turn": 3, "pillars": 2},
}
Step = list[Action]
Policy = Callable[[Robots, random.Random], dict[str, str]]


# ---- The reference


def predict(layout: Layout, scene: Scene, step: Sequence[Action]) -> Scene:
    """Return the scene after a step in which everything goes as planned."""
    predicted = Scene(list(scene.grippers), list(scene.held), dict(scene.items), dict(scene.heights))
    for robot, action in enumerate(step):
        predicted.grippers[robot] = action.points[-1] if action.points else target(scene, robot, action)
        if action.verb == "pick":
            predicted.held[robot] = action.name
    for robot, action in enumerate(step):
        if name := predicted.held[robot]:
            predicted.items[name] = predicted.grippers[robot]
            predicted.heights[name] = 0.0 if action.verb == "place" else 20.0
            if action.verb == "place":
                predicted.held[robot] = ""
        if action.verb == "sweep":
            (x, y), (end_x, end_y) = action.points
            length = math.dist(*action.points)
            # What is ahead of the broom stops 4 cm ahead of where it stops.
            ahead = (end_x + 4 * (end_x - x) / length, end_y + 4 * (end_y - y) / length)
            for item, point in scene.items.items():
                if segment_distance(point, *action.points) < 7:
                    predicted.items[item] = ahead
    return predicted


def homeward(layout: Layout, scene: Scene, robot: int) -> Action:
    base = layout.bases[robot]
    return WAIT if math.dist(scene.grippers[robot], base) < 1 else Action("move", points=(base,))


def direct(layout: Layout, scene: Scene, robot: int, action: Action) -> Step | None:
    """Return a step in which one robot acts while the others go home, stay, or make room."""
    partners = [i for i in range(len(layout.bases)) if i != robot]
    end = target(scene, robot, action)
    room = {}
    for partner in partners:
        cells = [cell for cell in CELLS if layout.can_reach(partner, cell)]
        room[partner] = Action("move", points=(max(cells, key=lambda cell: math.dist(cell, end)),))
    for choice in ({i: homeward(layout, scene, i) for i in partners}, {}, room):
        step = [action if i == robot else choice.get(i, WAIT) for i in range(len(layout.bases))]
        if not find_faults(layout, scene, step):
            return step
    return None


def detour(layout: Layout, scene: Scene, robot: int, action: Action) -> Step | None:
    """Return the first step of a way with up to three way points, while the others stay; or others make room first."""
    homes = {i: homeward(layout, scene, i) for i in range(len(layout.bases)) if i != robot}
    for partner, home in homes.items():
        for cell in ((home.points or (scene.grippers[partner],))[0], *CELLS):
            step = [Action("move", points=(cell,)) if i == partner else WAIT for i in range(len(layout.bases))]
            is_far = math.dist(cell, scene.grippers[partner]) > 5 and math.dist(cell, target(scene, robot, action)) > 30
            if not is_far or find_faults(layout, scene, step):
                continue
            if direct(layout, predict(layout, scene, step), robot, action):
                return step
    queue: list[tuple[Scene, Step | None, int]] = [(scene, None, 0)]
    visited = set()
    while queue:
        state, first, depth = queue.pop(0)
        if first and direct(layout, state, robot, action):
            return first
        for cell in CELLS if depth < 3 else ():
            step = [Action("move", points=(cell,)) if i == robot else WAIT for i in range(len(layout.bases))]
            if cell not in visited and not find_faults(layout, state, step):
                visited.add(cell)
                queue.append((predict(layout, state, step), first or step, depth + 1))
    return None


def first_possible(layout: Layout, scene: Scene, candidates: Sequence[tuple[int, Action]]) -> Step | None:
    """Return a step for the first of several actions that is possible at once, else on a detour."""
    for way in (direct, detour):
        for robot, action in candidates:
            if step := way(layout, scene, robot, action):
                return step
    return None


def chain(layout: Layout, start: Point, goal: Point) -> list[int]:
    """Return the robots that hand an object on from its place to its goal. Bases stand in a row."""
    reach = [owners(point, layout.bases, layout.reach, 0.0) for point in (start, goal)]
    pairs = [(abs(last - first), first, last) for first in reach[0] for last in reach[1]]
    _, first, last = min(pairs, default=(0, 0, 0))  # what nobody reaches stays where it is
    return list(range(first, last + 1) if first <= last else range(first, last - 1, -1))


def cube_step(layout: Layout, scene: Scene) -> Step | None:
    """Move one cube after the other: pick it, and place it at its goal or where the next robot reaches it."""
    holders = [robot for robot, name in enumerate(scene.held) if name]
    if not holders:
        unsettled = [name for name in layout.items if not scene.is_settled(layout, name)]
        firsts = [chain(layout, scene.items[name], layout.goals[name])[0] for name in unsettled]
        picks = [(robot, Action("pick", name)) for robot, name in zip(firsts, unsettled, strict=True)]
        return first_possible(layout, scene, picks)
    robot, goal = holders[0], layout.goals[scene.held[holders[0]]]
    if layout.can_reach(robot, goal):
        cells = [goal]
    else:
        (last, *_), side = owners(goal, layout.bases, layout.reach, 0.5), 1
        following = robot + (side if last > robot else -side)
        obstacles = [item for name, item in scene.items.items() if name != scene.held[robot]]
        shared = [
            cell
            for cell in CELLS
            if {robot, following} <= set(owners(cell, layout.bases, layout.reach, 2.0))
            and all(math.dist(cell, obstacle) >= LATTICE for obstacle in (*obstacles, *layout.goals.values()))
            and all(math.dist(cell, base) >= CLEARANCE + 2 for base in layout.bases)
        ]
        cells = sorted(shared, key=lambda cell: math.dist(cell, scene.grippers[robot]) + math.dist(cell, goal))
    return first_possible(layout, scene, [(robot, Action("place", points=(cell,))) for cell in cells])


def bar_step(layout: Layout, scene: Scene) -> Step | None:
    """Pick both ends, turn the bar pose by pose while it is carried, and place it."""
    for first, second in ((0, 1), (1, 0)):
        holders = {"a": first, "b": second}
        if all(layout.can_reach(holders[name], spot[name]) for name in ENDS for spot in (scene.items, layout.goals)):
            break
    open_ends = [name for name in ENDS if name not in scene.held]
    if open_ends:
        picks = [(holders[name], Action("pick", name)) for name in open_ends]
        step = [dict(picks).get(robot, WAIT) for robot in (0, 1)]
        if not find_faults(layout, scene, step):
            return step
        return first_possible(layout, scene, picks)
    return bar_way(layout, scene, first, second)


def bar_way(layout: Layout, scene: Scene, by_a: int, by_b: int) -> Step | None:
    """Return the first step of a way of the bar to its goal: best first over places of end a and poses."""

    def pose_of(a: Point, b: Point) -> int:
        vector = (b[0] - a[0], b[1] - a[1])
        return min(range(len(POSES)), key=lambda pose: math.dist(POSES[pose], vector))

    def step_to(a: Point, b: Point, verb: str) -> Step:
        step = [WAIT, WAIT]
        step[by_a], step[by_b] = Action(verb, points=(a,)), Action(verb, points=(b,))
        return step

    def turns(pose: int) -> int:
        return min((pose - goal_pose) % len(POSES), (goal_pose - pose) % len(POSES))

    goal_a, goal_b = layout.goals["a"], layout.goals["b"]
    goal_pose, numbers = pose_of(goal_a, goal_b), counter()
    queue: list[tuple[float, int, Scene, int, Step | None]] = []
    heappush(queue, (0, next(numbers), scene, 0, None))
    visited = set()
    while queue:
        _, _, state, depth, first = heappop(queue)
        final = step_to(goal_a, goal_b, "place")
        if not find_faults(layout, state, final):
            return first or final
        if depth >= 5:
            continue
        pose = pose_of(state.items["a"], state.items["b"])
        for following in {pose, (pose + 1) % len(POSES), (pose - 1) % len(POSES)}:
            for a in CELLS:
                b = (a[0] + POSES[following][0], a[1] + POSES[following][1])
                if (a, following) in visited or b not in CELLS:
                    continue
                step = step_to(a, b, "move")
                if not find_faults(layout, state, step):
                    visited.add((a, following))
                    cost = 10 * (depth + turns(following)) + math.dist(a, goal_a) / 50
                    heappush(queue, (cost, next(numbers), predict(layout, state, step), depth + 1, first or step))
    return None


def ball_step(layout: Layout, scene: Scene) -> Step | None:
    """Sweep one ball after the other: a breadth-first search over sweeps along the axes, onto the lattice or into the
    bin, that move no other ball."""
    for name in sorted(layout.items, key=lambda name: math.dist(scene.items[name], layout.goals[name])):
        if scene.is_settled(layout, name):
            continue
        queue: list[tuple[Point, Step | None]] = [(scene.items[name], None)]
        visited = set()
        while queue:
            ball, first = queue.pop(0)
            state = Scene(list(scene.grippers), list(scene.held), {**scene.items, name: ball}, scene.heights)
            if state.is_settled(layout, name):
                return first
            for robot, sweep, position in sweeps(layout, state, name):
                cell = (round(position[0]), round(position[1]))
                if cell in visited:
                    continue
                step = first or direct(layout, state, robot, sweep)
                if step is not None:
                    visited.add(cell)
                    queue.append((position, step))
    return None


def sweeps(layout: Layout, scene: Scene, name: str) -> Iterator[tuple[int, Action, Point]]:
    """Yield the robot, the sweep and the place of the ball after it."""
    (x, y), (bin_x, bin_y), opening = scene.items[name], layout.goals[name], layout.opening
    obstacles = [item for label, item in scene.items.items() if label != name and not scene.is_settled(layout, label)]
    mouth = bin_x + opening * BIN / 2
    ends = [(float(cell), y) for cell in range(20, 190, LATTICE) if (cell - mouth) * opening > 20]
    ends += [(x, float(cell)) for cell in range(20, 110, LATTICE) if (x - mouth) * opening > 12]
    if abs(y - bin_y) <= 4:
        full = sum(scene.is_settled(layout, label) for label in layout.items) >= 3
        ends.insert(0, (bin_x + opening * (8 if full else 6), y))
    for end in ends:
        length = math.dist((x, y), end)
        if length < 3:
            continue
        dx, dy = (end[0] - x) / length, (end[1] - y) / length
        points = ((x - 10 * dx, y - 10 * dy), (end[0] - 4 * dx, end[1] - 4 * dy))
        if any(segment_distance(obstacle, *points) < 14 or math.dist(obstacle, end) < 14 for obstacle in obstacles):
            continue
        for robot in range(len(layout.bases)):
            if all(layout.can_reach(robot, point) for point in points):
                yield robot, Action("sweep", points=points), end


def reference_steps(env: Robots) -> list[Step]:
    """Return the steps of the next turn."""
    solve = {"handover": cube_step, "sort": cube_step, "sweep": ball_step, "carry": bar_step}[env.layout.kind]
    scene, steps = env.scene, []
    while len(steps) < env.plan and not all(scene.is_settled(env.layout, name) for name in env.layout.items):
        step = solve(env.layout, scene)
        if step is None:
            break
        steps.append(step)
        scene = predict(env.layout, scene, step)
    return steps or [[WAIT] * env.count]


def written(action: Action, unit: float = 1.0) -> str:
    """Return an action as a plan has it."""
    numbers = " to ".join(
        " ".join(f"{value / unit:.1f}".removesuffix(".0") for value in point) for point in action.points
    )
    return " ".join(part for part in (action.verb, action.name[:1] if unit > 1 else action.name, numbers) if part)


def as_texts(env: Robots, steps: Sequence[Step]) -> dict[str, str]:
    """Return the texts of all roles for these steps."""
    unit = LATTICE if env.prompts == "compact" else 1
    plans = ["; ".join(written(step[robot], unit) for step in steps) for robot in range(env.count)]
    if "agent" in env.roles:
        return {"agent": "\n".join(f"robot {robot}: {plan}" for robot, plan in enumerate(plans, 1))}
    return {f"robot_{robot}": f"Plan: {plan}" for robot, plan in enumerate(plans, 1)}


def reference(env: Robots, draw: random.Random) -> dict[str, str]:
    return as_texts(env, reference_steps(env))


# ---- Policies without a plan


def random_plans(env: Robots, draw: random.Random) -> dict[str, str]:
    """Return plans of random primitives with points in the reach of each robot."""
    steps = []
    for _ in range(env.plan):
        step = []
        for robot in range(env.count):
            cells = [cell for cell in CELLS if robot in owners(cell, env.layout.bases, env.layout.reach)]
            verb = draw.choice(env.layout.verbs)
            number = {"pick": 0, "wait": 0, "sweep": 2}.get(verb, 1)
            name = draw.choice(list(env.layout.items)) if verb == "pick" else ""
            step.append(Action(verb, name, tuple(draw.choice(cells) for _ in range(number))))
        steps.append(step)
    return as_texts(env, steps)


def greedy_plans(env: Robots, draw: random.Random) -> dict[str, str]:
    """Return the plans of robots who each take the nearest object in reach straight towards its goal, as far as they
    reach, without regard to the other robots."""
    layout, scene, plans = env.layout, env.scene, []
    for robot in range(env.count):
        near = [
            name
            for name, item in scene.items.items()
            if layout.can_reach(robot, item) and not scene.is_settled(layout, name) and name not in scene.held
        ]
        name = scene.held[robot] or min(
            near, key=lambda n: math.dist(scene.items[n], scene.grippers[robot]), default=""
        )
        if not name:
            plans.append([WAIT])
            continue
        item, goal = scene.items[name], layout.goals[name]
        shares = [share / 20 for share in range(20, 0, -1)]
        ways = [(item[0] + s * (goal[0] - item[0]), item[1] + s * (goal[1] - item[1])) for s in shares]
        way = next((point for point in ways if layout.can_reach(robot, point)), item)
        if layout.kind == "sweep":
            length = math.dist(item, goal) or 1.0
            behind = (item[0] - 10 * (goal[0] - item[0]) / length, item[1] - 10 * (goal[1] - item[1]) / length)
            plans.append([Action("sweep", points=(behind, way))])
        else:
            action = Action("place", points=(way,))
            plans.append([action] if scene.held[robot] else [Action("pick", name), action][: env.plan])
    longest = max(map(len, plans))
    return as_texts(env, [[plan[n] if n < len(plan) else WAIT for plan in plans] for n in range(longest)])


# ---- Exploits


def same(text: str) -> Policy:
    return lambda env, draw: {role: text for role in env.observe()}


def echo(env: Robots, draw: random.Random) -> dict[str, str]:
    return {role: shown.messages[-1].content for role, shown in env.observe().items()}


def forth_and_back(env: Robots, draw: random.Random) -> dict[str, str]:
    """Bring objects nearer in every other turn, and back in the next: progress is earned again and again, or not."""
    layout = env.layout
    if env.turn % 2 == 0:
        return as_texts(env, reference_steps(env)[: 1 if layout.kind == "sweep" else 2])
    steps: list[Step] = [[WAIT] * env.count, [WAIT] * env.count]
    for robot, item in enumerate(env.scene.held):
        moved = [name for name in layout.items if math.dist(env.scene.items[name], layout.items[name]) > 5]
        near = [name for name in moved if layout.can_reach(robot, env.scene.items[name])]
        name = item or (near[0] if near and layout.kind != "carry" else "")
        if name and layout.kind == "sweep":
            (x, y), (old_x, old_y) = env.scene.items[name], layout.items[name]
            length = math.dist((x, y), (old_x, old_y))
            behind = (x - 10 * (old_x - x) / length, y - 10 * (old_y - y) / length)
            steps[0][robot] = Action("sweep", points=(behind, (old_x, old_y)))
        elif name and layout.can_reach(robot, layout.items[name]):
            steps[0][robot] = WAIT if item else Action("pick", name)
            steps[1][robot] = Action("place", points=(layout.items[name],))
    return as_texts(env, steps)


def nearly(env: Robots, draw: random.Random) -> dict[str, str]:
    """The reference's plans without the steps that end the work."""
    steps = [
        [WAIT if action.verb in ("place", "sweep") else action for action in step] for step in reference_steps(env)
    ]
    return as_texts(env, steps)


EXPLOITS: dict[str, Policy] = {
    "empty answer": same(""),
    "echo the prompt": echo,
    "noise": same("I think it is easy!"),
    "overlong": same("Plan: " + "wait; " * 5000),
    "wait": same("Plan: wait"),
    "claim": same("Plan: done\nsuccess = True; all cubes are on their pads."),
    "the example of the prompt": same("Plan: pick NAME; place X Y"),
    "hold and never place": nearly,
    "forth and back": forth_and_back,
    "random": random_plans,
}


# ---- Hostile plans, which a test plays

NOISE = texts("robots")


def hostile_text(draw: random.Random) -> str:
    """Return a plan that tries to hang, to diverge, or to get out."""
    if draw.random() < 0.3:
        return next(NOISE)[1]
    number = draw.choice(["-1", "9999", "1e9", "nan", "inf", "-0", "0", "200", "120", "0.01", "٣", "9" * 400, "1/0"])
    point = f"{draw.choice([number, str(draw.randrange(200))])} {draw.choice([number, str(draw.randrange(120))])}"
    step = draw.choice(
        [
            f"move {point}",
            f"place {point}",
            f"sweep {point} to {point}",
            f"sweep {draw.randrange(200)} {draw.randrange(120)} to {draw.randrange(200)} {draw.randrange(120)}",
            "pick red",
            "pick a",
            "pick b",
            "pick red pick green",
            f"place {draw.randrange(0, 200, 10)} {draw.randrange(0, 120, 10)}",
            "__import__('os').system('touch robots-canary')",
            "open('robots-canary', 'w')",
            "../../etc/passwd",
            "<include file='/etc/passwd'/>",
            '"/><geom size="nan"/>',
            "move " * draw.choice([3, 3000]),
            "move " + "(" * draw.choice([3, 3000]) + "1 1",
            "wait" + " " * draw.choice([3, 3000]) + "x",
            "pick " + "a" * draw.choice([3, 3000]),
        ]
    )
    many = draw.choice([1, 2, 4, 4, 5, 1000])
    joined = draw.choice(["; ", "\n", " ; "]).join([step] * many)
    return draw.choice(["Plan: ", "", "plan:plan:", "robot 1: ", "robot 1: wait\nrobot 2: "]) + joined


def is_finite(env: Robots) -> bool:
    scene = env.scene
    points = [*scene.grippers, *scene.items.values()]
    return all(abs(value) < 1000 for point in points for value in point)


async def attack(env: Robots, text: str, partner: str) -> str:
    """Play hostile texts for all who are asked, or beside an honest partner; return why one got through, or nothing."""
    try:
        for _ in range(2):
            roles = list(env.observe())
            if not roles:
                break
            await env.step({role: text if number == 0 or not partner else partner for number, role in enumerate(roles)})
            json.dumps(env.render())
    except Exception as error:  # noqa: BLE001 - what leaves a step is what is counted here
        return f"raised {error!r}"
    if not is_finite(env):
        return "left numbers that are not finite"
    return "solved a task" if env.success else ""


# ---- Examples


RIGHT = 0.35  # of the plans; the others lack their last primitive


def mixed(plan: str, draw: random.Random) -> str:
    """Return a compact plan of mixed quality."""
    steps = plan.split("; ")
    return plan if len(steps) == 1 or draw.random() < RIGHT else "; ".join(steps[:-1])


def examples(form: type[Robots], kind: str, draw: random.Random, **settings: Any) -> Iterator[dict[str, str]]:
    """Yield compact prompts of training tasks with plans of mixed quality, whose effects the next prompts show."""
    tasks = form.tasks("train", kind=kind, objects=1)  # type: ignore[arg-type]
    for index in range(len(tasks)):
        env = form(tasks[index], prompts="compact", **settings)
        while observations := env.observe():
            answers = {
                role: "\n".join(
                    label + separator + mixed(plan, draw)
                    for label, separator, plan in (line.rpartition(": ") for line in text.split("\n"))
                ).removeprefix("Plan: ")
                for role, text in reference(env, draw).items()
            }
            for role, observation in observations.items():
                yield {"role": role, "prompt": observation.messages[-1].content, "answer": answers[role]}
            asyncio.run(env.step(answers))


def write_examples(file: Path, kind: str, count: int = 6000) -> None:
    lines = islice(examples(Robots, kind, random.Random(0), plan=3, turns=4), count)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{count} examples in {file}")


# ---- Figures


def episodes(kind: str, count: int, env: type[Robots] = Robots, **dials: Any) -> Iterator[Robots]:
    tasks = env.tasks("test", kind=kind, **dials)  # type: ignore[arg-type]
    return (env(tasks[index]) for index in range(count))


def play(env: Robots, policy: Policy, draw: random.Random) -> float:
    """Play an episode; return the sum of all rewards."""
    total = 0.0
    while env.observe():
        reward = asyncio.run(env.step(policy(env, draw)))
        total += reward.team + sum(reward.local.values())
    return total


def solved(kind: str, count: int, policy: Policy, seed: str, **dials: Any) -> float:
    """Return the share of tasks that a policy solves."""
    draw, right = random.Random(seed), 0
    for env in episodes(kind, count, **dials):
        play(env, policy, draw)
        right += env.success
        if policy is reference and not env.success:
            print(f"not solved: {env.task.id}: {env.outcomes}", flush=True)
    return right / count


Kinds = Sequence[str]
Line = tuple[str, list[float], str, int]


def references(kinds: Kinds, tasks: int) -> Iterator[Line]:
    for kind in kinds:
        yield f"{kind}.reference_pass", [solved(kind, tasks, reference, "reference")], "share", tasks
        few = max(1, tasks // 5)
        yield f"{kind}.reference_pass.hard", [solved(kind, few, reference, "hard", **HARD[kind])], "share", few


def baselines(kinds: Kinds, tasks: int) -> Iterator[Line]:
    for label, policy in (("random", random_plans), ("greedy", greedy_plans)):
        for kind in kinds:
            yield f"{kind}.{label}", [solved(kind, tasks, policy, label)], "share", tasks


def exploits(kinds: Kinds, tasks: int) -> Iterator[Line]:
    draw, best, number = random.Random("exploits"), 0.0, max(1, tasks // 20)
    for kind in kinds:
        honest = [play(env, reference, draw) for env in episodes(kind, number)]
        for name, policy in EXPLOITS.items():
            shares = [
                play(env, policy, draw) / reference
                for env, reference in zip(episodes(kind, number), honest, strict=True)
            ]
            mean = sum(shares) / len(shares)
            print(f"  {kind} {name}: {mean:.3f} of the reference's reward, at most {max(shares):.3f}", flush=True)
            best = max(best, mean)
    yield "exploits_best", [best], "share of honest", number * len(EXPLOITS) * len(kinds)


PARTS: dict[str, Callable[[Kinds, int], Iterator[Line]]] = {
    "references": references,
    "baselines": baselines,
    "exploits": exploits,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.parts[:1] == ["examples"]:
        if len(options.parts) != 2:
            parser.error("examples: expected the file to write")
        write_examples(Path(options.parts[1]), options.kinds[0])
        return
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"got the part {unknown.pop()!r}; expected {', '.join(PARTS)} or examples")
    for part in options.parts or PARTS:
        for name, values, unit, number in PARTS[part](options.kinds, options.tasks):
            print(f"worlds.robots.{name}: {values[0]:.4g} {unit} of {number:,}", flush=True)
            if options.write:
                command = " ".join(["python -m lab.robots", *sys.argv[1:]])
                record("worlds", f"worlds.robots.{name}", values, unit, command, number)


if __name__ == "__main__":
    main()
