"""Control groups: found where they are delegated and nowhere else, cleaned up after a crash; and real, where one is.

The search and the clean-up are tried on folders that look like /proc and a cgroup tree; the limits themselves only
where this machine delegates a group (for example under `systemd-run --user --scope -p Delegate=yes`).
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadre_sandbox import Limits, Result, Sandbox, SandboxError, cgroups, levels, pool, probes
from cadre_sandbox.cgroups import Delegation, NotDelegated
from cadre_sandbox.inside import groups
from cadre_sandbox.levels import GroupTrial
from cadre_tasks import sandbox

ROOT = Path(__file__).parents[2]
V1 = "30 25 0:26 / /sys/fs/cgroup/memory rw,relatime shared:5 - cgroup cgroup rw,memory"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `proc`, and `cgroup` as the mount point of a tree of groups. We are an ordinary user."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (tmp_path / "proc").mkdir()
    process(tmp_path, "0::/", mount_of(tmp_path))
    return tmp_path


def mount_of(tree: Path, root: str = "/") -> str:
    return f"31 25 0:27 {root} {tree}/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def process(tree: Path, groups: str, *mounts: str) -> None:
    (tree / "proc" / "cgroup").write_text(groups + "\n")
    (tree / "proc" / "mountinfo").write_text("\n".join(mounts) + "\n")


def group(tree: Path, path: str, present: str = "", passed: str = "", pids: str = "", root: bool = False) -> str:
    """A group's folder with its files, as the kernel would show them."""
    folder = tree / "cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"cgroup.controllers": present, "cgroup.subtree_control": passed, "cgroup.procs": pids}
    for name, text in (texts if root else {**texts, "cgroup.type": "domain"}).items():
        (folder / name).write_text(text.replace(" ", "\n") if name == "cgroup.procs" else text + "\n")
    return str(folder)


def found(tree: Path) -> Delegation:
    return cgroups.find(str(tree / "proc"))


def test_a_group_that_passes_its_controllers_on(tree: Path) -> None:
    folder = group(tree, "", "cpu io memory pids", "cpu memory pids", root=True)
    assert found(tree) == Delegation(folder, ("memory", "pids", "cpu"))
    group(tree, "", "memory pids", "memory pids", root=True)
    assert found(tree).controllers == ("memory", "pids")


def test_the_nearest_group_above_that_passes_them_on(tree: Path) -> None:
    group(tree, "", "cpu memory pids", "memory pids", root=True)
    near = group(tree, "user", "cpu memory pids", "memory pids")
    group(tree, "user/session", "memory pids", "", "1 2")
    process(tree, "0::/user/session", V1, mount_of(tree))
    assert found(tree) == Delegation(near, ("memory", "pids"))


def test_a_mount_that_shows_only_a_part_of_the_tree(tree: Path) -> None:
    folder = group(tree, "job", "memory pids", "memory pids")
    process(tree, "4:memory:/\n0::/box/abc/job", mount_of(tree, "/elsewhere"), mount_of(tree, "/box/abc"))
    assert found(tree).folder == folder


def test_spaces_in_a_mount_point(tree: Path) -> None:
    point = tree / "c g"
    point.symlink_to(tree / "cgroup")
    group(tree, "", "memory pids", "memory pids", root=True)
    process(tree, "0::/", mount_of(tree).replace(f"{tree}/cgroup", f"{tree}/c\\040g"))
    assert found(tree).folder == str(point)


@pytest.mark.parametrize(
    ("membership", "mounts"),
    [
        ("9:pids:/\n4:memory:/job", (V1,)),  # version 1 alone
        ("0::/", ()),  # nothing mounted
        ("0::/../other", ("ALL",)),  # a namespace that does not hold us
        ("0::/boxed", ("/box",)),  # a mount of another part
    ],
)
def test_no_hierarchy_that_holds_us(tree: Path, membership: str, mounts: tuple[str, ...]) -> None:
    shown = {"ALL": mount_of(tree), "/box": mount_of(tree, "/box")}
    process(tree, membership, *(shown.get(mount, mount) for mount in mounts))
    with pytest.raises(NotDelegated, match="no cgroup v2 hierarchy"):
        found(tree)


def test_controllers_that_are_missing(tree: Path) -> None:
    """Memory and pids of such a machine belong to version 1."""
    group(tree, "", "hugetlb", "", "1", root=True)
    with pytest.raises(NotDelegated, match="has no controllers memory and pids"):
        found(tree)
    group(tree, "", "memory", "memory", "1", root=True)
    with pytest.raises(NotDelegated, match="has no controllers pids"):
        found(tree)


def test_a_group_that_is_not_ours(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(tree, "", "memory pids", "memory pids", root=True)
    monkeypatch.setattr(cgroups, "writable", lambda folder: False)
    with pytest.raises(NotDelegated, match="is not ours to write"):
        found(tree)


def test_root_needs_more_than_the_right_to_write(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere: a mark of systemd's, or the top of what it sees, says that nobody else divides it."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    slice_ = group(tree, "slice", "memory pids", "memory pids")
    top = group(tree, "", "memory pids", "", "1", root=True)
    process(tree, "0::/slice", mount_of(tree))
    with pytest.raises(NotDelegated, match=r"slice is root's like any other.*; .*passes no memory and pids on"):
        found(tree)
    monkeypatch.setattr(cgroups, "marked", lambda folder: folder == slice_)
    assert found(tree).folder == slice_
    monkeypatch.setattr(cgroups, "marked", lambda folder: False)
    group(tree, "", "memory pids", "memory pids", "1", root=True)
    assert found(tree).folder == top


def test_no_internal_processes(tree: Path) -> None:
    """A group with processes passes nothing on; we can leave our own when nobody else is in it, but not the root."""
    process_id = str(os.getpid())
    group(tree, "", "memory pids", "", root=True)
    folder = group(tree, "job", "cpu memory pids", "", process_id)
    process(tree, "0::/job", mount_of(tree))
    assert found(tree) == Delegation(folder, ("memory", "pids", "cpu"), leave=True)
    group(tree, "job", "cpu memory pids", "", f"{process_id} 1 2")
    with pytest.raises(NotDelegated, match="holds 2 other processes"):
        found(tree)
    group(tree, "", "memory pids", "", process_id, root=True)
    process(tree, "0::/", mount_of(tree))
    with pytest.raises(NotDelegated, match="passes no memory and pids on"):
        found(tree)


def test_names_tell_the_living_from_the_dead() -> None:
    space, own_getpid = cgroups.pid_namespace(), os.getpid()
    start = cgroups.start_of(own_getpid)
    assert start > 0
    assert not cgroups.is_left_over(f"cadre-{space}-{own_getpid}-{start}-0")
    assert cgroups.is_left_over(f"cadre-{space}-{own_getpid}-{start + 1}-0")  # the id was used before
    assert cgroups.is_left_over(f"cadre-{space}-{2**22 + 1}-5-12")  # past the last id there can be
    assert not cgroups.is_left_over(f"cadre-{space + 1}-{2**22 + 1}-5-12")  # ids of another namespace say nothing here
    assert not cgroups.is_left_over("cadre-user-chosen")
    assert not cgroups.is_left_over("system.slice")


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert cgroups.start_of(process.pid) == 0
    process.wait()


def test_the_next_start_removes_what_the_dead_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"cadre-{cgroups.pid_namespace()}-{2**22 + 1}-5-{number}" for number in range(3)]
    stored = ["system.slice", f"cadre-7-{2**22 + 1}-5-0", "cadre-x"]
    for name in names + stored:
        (tmp_path / name).mkdir()
    make = cgroups.make(Delegation(str(tmp_path), ("memory", "pids")))
    cgroups.clean_up(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted([*stored, os.path.basename(make)])
    for name in names:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    cgroups.clean_up(str(tmp_path))  # another user's
    assert set(names) < set(os.listdir(tmp_path))


def test_what_cannot_be_removed_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "group" / "below").mkdir(parents=True)
    with caplog.at_level(logging.WARNING, "cadre_sandbox"):
        cgroups.remove(str(tmp_path / "group"))
    assert "group is left over" in caplog.text
    caplog.clear()
    cgroups.remove(str(tmp_path / "nothing"))
    assert not caplog.text


def test_limits_by_hand() -> None:
    request = {"children": 2, "memory_mb": 256, "folder_mb": 4}
    assert groups.limits_of(request) == {
        "memory.max": str((2 * 256 + 4 + 8) * 1024 * 1024),
        "memory.swap.max": "0",
        "pids.max": "128",
        "cpu.max": "200000 100000",
    }
    assert groups.oom_kills("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n") == 3


def test_a_group_without_its_controls_is_refused(tmp_path: Path) -> None:
    for name in (*groups.CONTROLS, *groups.EVENTS):
        (tmp_path / name).touch()
    assert set(groups.open_group(str(tmp_path)).files) == {*groups.CONTROLS, *groups.EVENTS}
    (tmp_path / "cgroup.kill").unlink()
    with pytest.raises(FileNotFoundError, match=r"cgroup\.kill"):
        groups.open_group(str(tmp_path))


def test_a_parent_whose_group_fails_gives_no_code(tmp_path: Path) -> None:
    """The layer is part of what every child must say it has armed."""
    trial = asyncio.run(levels.attack_group(Delegation(str(tmp_path), ("memory", "pids"))))
    assert trial.delegation is None
    assert "cgroup.procs" in trial.reason
    assert os.listdir(tmp_path) == []


def test_an_attack_that_only_ran_out_of_time_has_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(runner: object, chosen: list[probes.Attack]) -> list[probes.Outcome]:
        return [probes.Outcome("many processes", "processes", "timeout", "", "clock", 3.0)]

    monkeypatch.setattr(levels, "attack_one", slow)
    monkeypatch.setattr(levels, "OneWorker", lambda *arguments: None)
    trial = asyncio.run(levels.attack_group(Delegation("/nowhere", ("memory", "pids"))))
    assert trial == GroupTrial(None, "many processes: ended by clock")


def test_the_layer_is_asked_for_or_taken_where_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(levels, "attempt_groups", lambda: GroupTrial(None, "version 1 only"))
    with pytest.raises(SandboxError, match=r"Got: version 1 only.*Delegate=yes"):
        Sandbox("process", cgroup="on")
    with caplog.at_level(logging.INFO, "cadre_sandbox"):
        assert "cgroup" not in Sandbox("process").layers
    assert "no sandbox layer cgroup here: version 1 only" in caplog.text
    monkeypatch.setattr(levels, "attempt_groups", lambda: GroupTrial(Delegation("/nowhere", ("memory", "pids")), ""))
    assert Sandbox("process").layers[-1] == "cgroup"
    assert "cgroup" not in Sandbox("process", cgroup="off").layers


def test_the_record_and_the_table_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "attempt_groups", lambda: GroupTrial(None, "version 1 only"))
    monkeypatch.setattr(sandbox, "_default", None)
    assert sandbox.record()["cgroup"] == "none: version 1 only"
    row = sandbox.table()[-1]
    assert (row.name, row.given, row.detail) == ("layer cgroup", False, "none: version 1 only")


# From here on: a real control group.


@pytest.fixture
def real() -> Delegation:
    trial = levels.attempt_groups()
    if trial.delegation is None:
        pytest.skip(f"no control group here: {trial.reason}")
    return trial.delegation


def ours(delegation: Delegation) -> list[str]:
    """Groups that hold something to run programs in; the one that this process may have moved into stays."""
    own_content = Path("/proc/self/cgroup").read_text().strip().rpartition("/")[2]
    return [name for name in os.listdir(delegation.folder) if name.startswith("cadre-") and name != own_content]


@pytest.mark.parametrize("name", ["many processes", "memory of many processes"])
def test_only_the_group_stops_many_processes(real: Delegation, name: str) -> None:
    probe = next(probe for probe in probes.GROUP_PROBES if probe.name == name)

    async def go(mode: sandbox.GroupMode) -> probes.Outcome:
        with probes.World() as world:
            async with Sandbox("process", workers=1, cgroup=mode) as box:
                return await probes.try_attack(box, world, probe)

    assert asyncio.run(go("off")).breach
    limited = asyncio.run(go("on"))
    assert (limited.breach, limited.layer) == ("", "cgroup")
    assert ours(real) == []


def test_a_daemon_ends_with_its_run(real: Delegation) -> None:
    program = (
        "import os, time\nr, w = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
        "    os.write(w, b'%d' % os.getpid())\n    time.sleep(60)\nprint(os.read(r, 99).decode())"
    )

    async def go() -> tuple[int, bool]:
        async with Sandbox("process", workers=1, cgroup="on") as box:
            result = await box.run(program, limits=Limits(wall_s=20.0, cpu_s=20.0))
            return int(result.stdout), os.path.exists(f"/proc/{result.stdout.strip()}")

    pid, alive = asyncio.run(go())
    assert pid > 0
    assert not alive
    assert ours(real) == []


def test_a_run_that_the_group_kills_for_memory_is_oom(real: Delegation) -> None:
    """The address space holds it at this level too, so the memory is taken by pages of a file that has none."""
    program = "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, b'x' * (1 << 16))"

    async def go() -> Result:
        async with Sandbox("process", workers=1, cgroup="on") as box:
            return await box.run(program, limits=Limits(20.0, 20.0, 64, 100 << 20))

    assert asyncio.run(go()).status == "oom"


@pytest.mark.parametrize("mode", ["pool", "cold"])
def test_programs_run_as_ever(real: Delegation, mode: pool.Mode) -> None:
    async def go() -> list[Result]:
        async with Sandbox("process", mode, workers=2, cgroup="on") as box:
            assert len(ours(real)) == 0
            return [await box.run(f"print({number})", limits=Limits(wall_s=20.0)) for number in range(4)]

    results = asyncio.run(go())
    assert [result.stdout for result in results] == ["0\n", "1\n", "2\n", "3\n"]
    assert {result.layers[-1] for result in results} == {"cgroup"}
    assert ours(real) == []


TRAINER = """
import asyncio
from cadre_sandbox import levels, cgroups
from cadre_sandbox import Sandbox, Limits
levels.attempt_groups = lambda: levels.GroupTrial(cgroups.Delegation({folder!r}, {controllers!r}), "")
async def main():
    box = Sandbox("process", workers=1, cgroup="on")
    await box.run("pass", limits=Limits(60.0, 60.0))
    print("ready", flush=True)
    await box.run("import os, time\\nif os.fork() == 0: os.setsid()\\ntime.sleep(60)", limits=Limits(60.0, 60.0))
asyncio.run(main())
"""


def test_after_kill_9_the_next_start_removes_the_groups(real: Delegation) -> None:
    script = TRAINER.format(folder=real.folder, controllers=real.controllers)
    trainer = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "ready\n"
    time.sleep(0.5)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    assert len(ours(real)) == 1
    cgroups.clean_up(real.folder)
    assert ours(real) == []
