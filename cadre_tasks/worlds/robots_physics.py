"""The physics of the robots' table, in MuJoCo: grippers or brooms on rails, cubes, balls, or a bar.

A gripper is a body of 1 kg on three slides whose servos have limited force. It holds an object by an equality
constraint between two sites, which is switched on where it closes on the object and gives way under strain. Cubes and
bar have mass, dry friction and height; the bar weighs more than one gripper can lift. All state is in `mjData`, so that
a copy of it is an independent copy of the episode. Units are metres, seconds and kilograms here, centimetres outside.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from cadre.plugins import package
from cadre_tasks.worlds.robots_table import BAR, BIN, Action, Layout, Point, Scene, target

TICK = 4  # simulation steps of 5 ms between two commands of the servos
SPEED, PUSH_SPEED, SETTLE = 80.0, 40.0, 0.2  # cm/s and s
HIGH, CUBE, ROD, BROOM_HIGH, BROOM_LOW = 0.25, 0.05, 0.04, 0.15, 0.005  # heights of the tool
GRASP, GRIP = 0.03, 40.0  # m from which a gripper closes on an object, and N with which it holds it
LIFT = 14.0  # N that a gripper can lift; the bar weighs 20 N


def describe_model(layout: Layout) -> str:
    """Return the table in MuJoCo's XML format."""
    sweeps, carries = layout.kind == "sweep", layout.kind == "carry"
    bodies, actuators, equalities = [], [], []
    for number, (x, y) in enumerate(layout.pillars):
        bodies.append(f'<geom name="pillar{number}" type="cylinder" size=".04 .4" pos="{x / 100} {y / 100} .4"/>')
    if layout.bin is not None:
        bodies += _bin_walls(layout.bin, layout.opening)
    tool = '<geom type="capsule" fromto="0 0 .04 0 0 .3" size=".03" mass="1"/><site name="tip{0}"/>'
    broom = (
        '<joint name="yaw{0}" type="hinge" damping=".02"/><geom type="box" size=".01 .08 .03" pos="0 0 .03" mass=".6"/>'
        '<geom type="box" size=".03 .01 .03" pos=".03 .08 .03" euler="0 0 12" mass=".2"/>'
        '<geom type="box" size=".03 .01 .03" pos=".03 -.08 .03" euler="0 0 -12" mass=".2"/>'
    )
    for robot in range(len(layout.bases)):
        slides = "".join(
            f'<joint name="{axis}{robot}" type="slide" axis="{direction}"/>'
            for axis, direction in (("x", "1 0 0"), ("y", "0 1 0"), ("z", "0 0 1"))
        )
        bodies.append(f'<body gravcomp="1">{slides}{(broom if sweeps else tool).format(robot)}</body>')
        for axis in "xy":
            actuators.append(f'<position joint="{axis}{robot}" kp="1500" kv="80" forcerange="-60 60"/>')
        actuators.append(f'<position joint="z{robot}" kp="800" kv="60" forcerange="-{LIFT} {LIFT}"/>')
        if sweeps:
            actuators.append(f'<position joint="yaw{robot}" kp="5" kv=".4" forcerange="-5 5"/>')
    if carries:
        half = BAR / 200
        bodies.append(
            f"<body>{_slides('bar', 6.0)}"
            '<joint name="bar_z" type="slide" axis="0 0 1" range="0 1" limited="true"/>'
            '<joint name="bar_yaw" type="hinge" axis="0 0 1" frictionloss=".2" damping=".1"/>'
            f'<geom type="box" size="{half + 0.03} .02 .02" pos="0 0 .02" mass="2.04"/>'
            f'<site name="top_a" pos="-{half} 0 {ROD}"/><site name="top_b" pos="{half} 0 {ROD}"/></body>'
        )
    for name in () if carries else layout.items:
        shape = (
            '<geom type="sphere" size=".03" pos="0 0 .03" mass=".1"/>'
            if sweeps
            else f'<joint name="{name}_z" type="slide" axis="0 0 1" range="0 1" limited="true"/>'
            f'<geom type="box" size=".025 .025 .025" pos="0 0 .025" mass=".2"/>'
            f'<site name="top_{name}" pos="0 0 {CUBE}"/>'
        )
        bodies.append(f"<body>{_slides(name, 0.3 if sweeps else 0.6)}{shape}</body>")
    for robot in () if sweeps else range(len(layout.bases)):
        for name in layout.items:
            equalities.append(
                f'<connect name="{robot}_{name}" site1="tip{robot}" site2="top_{name}" active="false" '
                'solref=".01 1" solimp=".95 .99 .001"/>'
            )
    return (
        '<mujoco><compiler angle="degree"/><option timestep="0.005" integrator="implicitfast"/><size memory="1M"/>'
        f"<worldbody>{''.join(bodies)}</worldbody><actuator>{''.join(actuators)}</actuator>"
        f"<equality>{''.join(equalities)}</equality></mujoco>"
    )


def _slides(name: str, friction: float) -> str:
    """Return the joints of an object in the plane; their limits are the edges of the table."""
    return "".join(
        f'<joint name="{name}_{axis}" type="slide" axis="{direction}" range="0 {limit}" limited="true" '
        f'frictionloss="{friction}" damping=".5"/>'
        for axis, direction, limit in (("x", "1 0 0", 2.0), ("y", "0 1 0", 1.2))
    )


def _bin_walls(middle: Point, opening: int) -> list[str]:
    """Return the back and the two sides of the bin."""
    x, y, half = middle[0] / 100, middle[1] / 100, BIN / 200
    back = f'<geom type="box" size=".005 {half} .03" pos="{x - opening * half} {y} .03"/>'
    sides = [f'<geom type="box" size="{half} .005 .03" pos="{x} {y + side * half} .03"/>' for side in (-1, 1)]
    return [back, *sides]


def load_mujoco() -> Any:
    """Return the module. Raises ConfigError if it is missing."""
    mujoco = package("mujoco", "robots")
    # MuJoCo writes its warnings to a file in the working folder unless they go elsewhere.
    mujoco.set_mju_user_warning(_ignore_warning)
    return mujoco


def _ignore_warning(message: str) -> None:
    """Drop a warning; `Physics.run` looks at the counters of `mjData`."""


@lru_cache(maxsize=128)
def compiled(text: str) -> Any:
    """Return the model of a description. Shared by all episodes of its task, and never changed."""
    return load_mujoco().MjModel.from_xml_string(text)


class Physics:
    """The table of one episode. `copy.deepcopy` copies the state and shares the model."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.mujoco = layout, load_mujoco()
        self.model = compiled(describe_model(layout))
        self.data = self.mujoco.MjData(self.model)
        self.is_sweeping = layout.kind == "sweep"
        self.high = BROOM_HIGH if self.is_sweeping else HIGH
        self.names = list(layout.items)
        self.axes = 4 if self.is_sweeping else 3  # joints of a robot, which come first, and its actuators
        qpos, ctrl = self.data.qpos, self.data.ctrl
        for robot, (x, y) in enumerate(layout.bases):
            at = robot * self.axes
            qpos[at : at + 3] = ctrl[at : at + 3] = (x / 100, y / 100, self.high)
        if layout.kind == "carry":
            (ax, ay), (bx, by) = layout.items.values()
            qpos[self._first :][:4] = ((ax + bx) / 200, (ay + by) / 200, 0.0, math.atan2(by - ay, bx - ax))
        else:
            for number, (x, y) in enumerate(layout.items.values()):
                at = self._first + number * self._width
                qpos[at : at + 2] = (x / 100, y / 100)
        self.mujoco.mj_forward(self.model, self.data)

    @property
    def _first(self) -> int:
        """Return the index of the first coordinate of an object."""
        return self.axes * len(self.layout.bases)

    @property
    def _width(self) -> int:
        """Return the number of coordinates of an object."""
        return 2 if self.is_sweeping else 3

    def __deepcopy__(self, memo: dict[int, Any]) -> Physics:
        twin = object.__new__(Physics)
        twin.__dict__ |= self.__dict__
        twin.data = copy.copy(self.data)  # a deep copy would copy the model too
        return twin

    def scene(self) -> Scene:
        """Return positions in centimetres, from the coordinates of the joints alone."""
        qpos = self.data.qpos * 100.0
        robots = [qpos[robot * self.axes :][:2] for robot in range(len(self.layout.bases))]
        items, heights = {}, {}
        if self.layout.kind == "carry":
            x, y, z = (float(value) for value in qpos[self._first :][:3])
            yaw = float(self.data.qpos[self._first + 3])
            for name, sign in zip(self.names, (-1, 1), strict=True):
                items[name] = (x + sign * BAR / 2 * math.cos(yaw), y + sign * BAR / 2 * math.sin(yaw))
                heights[name] = z
        else:
            for number, name in enumerate(self.names):
                at = self._first + number * self._width
                items[name] = (float(qpos[at]), float(qpos[at + 1]))
                heights[name] = 0.0 if self.is_sweeping else float(qpos[at + 2])
        held = [self._held(robot) for robot in range(len(robots))]
        return Scene([(float(x), float(y)) for x, y in robots], held, items, heights)

    def _held(self, robot: int) -> str:
        active = self.data.eq_active
        return next(
            (name for i, name in enumerate(self.names) if not self.is_sweeping and active[self._grip(robot, i)]), ""
        )

    def _grip(self, robot: int, item: int) -> int:
        """Return the number of the constraint between a gripper and an object."""
        return robot * len(self.names) + item

    def run(self, actions: Sequence[Action]) -> bool:
        """Simulate a step of all robots; return False, with the state of before, if the numbers diverged."""
        saved = copy.copy(self.data)
        self._simulate(actions)
        state = [*self.data.qpos, *self.data.qvel]
        # MuJoCo starts anew by itself where numbers diverge, and counts it as a warning.
        if all(map(math.isfinite, state)) and not any(warning.number for warning in self.data.warning):
            return True
        self.data = saved
        return False

    def _simulate(self, actions: Sequence[Action]) -> None:
        scene = self.scene()
        robots = range(len(actions))
        ends = [target(scene, robot, action) for robot, action in enumerate(actions)]
        # 1. All travel above the table, and arrive at the same time.
        yaws = [self._yaw(robot, action) for robot, action in enumerate(actions)] if self.is_sweeping else []
        self._travel(scene.grippers, ends, SPEED, yaws)
        # 2. Who picks, places or sweeps lowers its tool.
        busy = [robot for robot in robots if actions[robot].verb in ("pick", "place", "sweep")]
        if not busy:
            return
        for robot in busy:
            low = BROOM_LOW if self.is_sweeping else ROD if self.layout.kind == "carry" else CUBE
            self._command(robot, 2, low)
        self._wait(0.4)
        # 3. Brooms are pushed; grippers close on what is beneath them, or open.
        pushed = [
            action.points[-1] if action.verb == "sweep" else end for action, end in zip(actions, ends, strict=True)
        ]
        if pushed != ends:
            self._travel(ends, pushed, PUSH_SPEED, [])
        for robot in busy:
            if actions[robot].verb == "place":
                for item in range(len(self.names)):
                    self.data.eq_active[self._grip(robot, item)] = 0
            if actions[robot].verb == "pick":
                item = self.names.index(actions[robot].name)
                # In the order of the description: the tips of the grippers come before the tops of the objects.
                sites = self.data.site_xpos
                if math.dist(sites[robot], sites[len(self.layout.bases) + item]) <= GRASP:
                    self.data.eq_active[self._grip(robot, item)] = 1
        self._wait(0.1)
        # 4. Tools are raised.
        for robot in busy:
            self._command(robot, 2, self.high)
        self._wait(1.0 if self.layout.kind == "carry" else 0.5)

    def _yaw(self, robot: int, action: Action) -> float:
        """Return the angle of a broom that looks along its sweep, the nearest equal one to the present angle."""
        now = float(self.data.qpos[robot * self.axes + 3])
        if action.verb != "sweep":
            return now
        (x, y), (end_x, end_y) = action.points
        turn = math.remainder(math.atan2(end_y - y, end_x - x) - now, math.tau)
        return now + turn

    def _command(self, robot: int, axis: int, value: float) -> None:
        self.data.ctrl[robot * self.axes + axis] = value

    def _travel(self, starts: Sequence[Point], ends: Sequence[Point], speed: float, yaws: Sequence[float]) -> None:
        """Move all tools to their ends in the time of the longest way, with a smooth start and end."""
        seconds = max(map(math.dist, starts, ends)) / speed
        if yaws:
            seconds = max(seconds, 0.5)
        ticks = math.ceil(seconds / (TICK * self.model.opt.timestep))
        turns = [float(self.data.qpos[robot * self.axes + 3]) for robot in range(len(yaws))]
        for tick in range(1, ticks + 1):
            s = tick / ticks
            s = s * s * (3 - 2 * s)
            for robot, ((x, y), (end_x, end_y)) in enumerate(zip(starts, ends, strict=True)):
                self._command(robot, 0, (x + s * (end_x - x)) / 100)
                self._command(robot, 1, (y + s * (end_y - y)) / 100)
            for robot, (turn, yaw) in enumerate(zip(turns, yaws, strict=True)):
                self._command(robot, 3, turn + s * (yaw - turn))
            self._tick()
        self._wait(SETTLE)

    def _wait(self, seconds: float) -> None:
        for _ in range(round(seconds / (TICK * self.model.opt.timestep))):
            self._tick()

    def _tick(self) -> None:
        self.mujoco.mj_step(self.model, self.data, TICK)
        if self.is_sweeping:
            return
        for robot in range(len(self.layout.bases)):
            for item in range(len(self.names)):
                grip = self._grip(robot, item)
                if self.data.eq_active[grip] and self._pull(grip) > GRIP:
                    self.data.eq_active[grip] = 0

    def _pull(self, grip: int) -> float:
        """Return the force in newtons with which a grip was pulled in the last step of the simulation."""
        data = self.data
        rows = (data.efc_type == int(self.mujoco.mjtConstraint.mjCNSTR_EQUALITY)) & (data.efc_id == grip)
        return math.hypot(*data.efc_force[rows])
