"""What trackers are told of a run: a stand-in at the boundary, and each real package offline where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cadre.config.experiment import parse
from cadre.errors import ConfigError
from cadre.runs import trackers
from cadre.runs.folder import Run
from cadre.runs.trackers import TRACKERS

REPORT = {"success": 0.25, "reward": 1.5, "low": 0.1, "high": 0.5, "tasks": 4}
# What the run below tells of, in this order.
TOLD = [
    (0, {"evaluate/success": 0.25, "evaluate/reward": 1.5}),
    (0, {"tool/reward": 0.5, "parts/right?": 1.0}),
    (1, {"tool/reward": 1.0, "parts/right?": 0.0}),
    (2, {"evaluate/success": 0.25, "evaluate/reward": 1.5}),
]


def configured(*names: str) -> dict[str, Any]:
    return {
        "env": "plan-path",
        "team": {"policies": {"shared": "seed"}, "roles": {"tool": "shared", "planner": "shared"}},
        "algorithm": {"name": "at_grpo", "k": 4},
        "trackers": {"names": list(names), "project": "mine"},
    }


def told(folder: Path, *names: str) -> Run:
    """A run of two steps, told to these trackers and closed."""
    run = Run.create(folder, parse(configured(*names)))
    run.log_evaluation(0, REPORT)
    run.log(0, TOLD[1][1])
    run.log(1, TOLD[2][1])
    run.log_evaluation(2, REPORT)
    run.close()
    return run


@dataclass
class Fake:
    """A tracker that remembers; `fails` is asked before each drawing."""

    fails: Callable[[int], bool] = lambda step: False
    points: list[list[tuple[int, Mapping[str, float]]]] = field(default_factory=list)
    closed: int = 0

    def begin(self, run: trackers.TrackedRun) -> Fake:
        if self.fails(-1):
            raise ConnectionError("no\nanswer")
        self.points.append([])
        return self

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        if self.fails(step):
            raise ConnectionError("gone")
        self.points[-1].append((step, numbers))

    def close(self) -> None:
        self.closed += 1


def with_fake(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> Fake:
    monkeypatch.setattr(trackers, "TRACKERS", {**TRACKERS, "wandb": fake.begin})
    return fake


def test_everything_is_told_once_in_the_order_in_which_it_came_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = with_fake(monkeypatch, Fake())
    told(tmp_path / "run", "wandb", "wandb")
    assert (fake.points, fake.closed) == ([TOLD], 1)


def test_a_run_that_goes_on_is_drawn_anew_up_to_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = with_fake(monkeypatch, Fake())
    run = told(tmp_path / "run", "wandb")
    run.rewind(1)
    run.close()
    assert fake.points == [TOLD, TOLD[:2]]


def test_one_that_fails_is_left_out_with_a_warning_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = with_fake(monkeypatch, Fake(lambda step: step == 1))
    run = told(tmp_path / "run", "wandb", "tensorboard")
    assert fake.points == [TOLD[:2]]
    assert len(run.metrics()) == 2
    assert caplog.messages == ["wandb is told no more of this run, which goes on: ConnectionError: gone"]
    assert drawn_by_tensorboard(run.folder, "tool/reward") == [(0, 0.5), (1, 1.0)]


def drawn_by_tensorboard(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_one_that_cannot_begin_says_so_in_a_paragraph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fake(monkeypatch, Fake(lambda step: step < 0))
    run = Run.create(tmp_path / "run", parse(configured("wandb")))
    with pytest.raises(ConfigError, match=r"wandb could not begin \(ConnectionError: no answer\); .*wandb login"):
        _ = run.trackers


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_package_is_refused_with_its_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"pip install .*\[{name}\]"):
        told(tmp_path / "run", name)


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trackers\.names\.0: got 'wand'; expected 'tensorboard', 'wandb'"):
        parse(configured("wand"))


def test_wandb_by_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of the package, for where it is not installed."""
    calls: list[Any] = []
    session = SimpleNamespace(
        log=lambda numbers, step: calls.append((step, numbers)), finish=lambda: calls.append("finish")
    )

    def init(**arguments: Any) -> Any:
        calls.append({name: arguments[name] for name in ("project", "name", "group", "dir")})
        return session

    fake = ModuleType("wandb")
    vars(fake).update(init=init, Settings=lambda **arguments: arguments, Error=RuntimeError)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = told(tmp_path / "run", "wandb")
    begun = {"project": "mine", "name": "run", "group": "run", "dir": run.folder}
    assert calls == [begun, *TOLD, "finish"]


@pytest.mark.parametrize(
    ("setting", "variable", "project"),
    [("cadre", "theirs", "theirs"), ("cadre", "", "cadre"), ("cadre", None, "cadre"), ("mine", "theirs", "mine")],
)
def test_the_variable_of_a_package_names_the_project_unless_the_settings_do(
    setting: str, variable: str | None, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    if variable is not None:
        monkeypatch.setenv("WANDB_PROJECT", variable)
    raw = {**configured("wandb"), "trackers": {"names": ["wandb"], "project": setting}}
    assert trackers.TrackedRun(tmp_path, parse(raw)).project("WANDB_PROJECT") == project


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb, of the extra wandb, is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = told(tmp_path / "run", "wandb")
    (sent,) = (run.folder / "wandb").glob("offline-run-*/run-*.wandb")
    assert sent.read_bytes().count(b"tool/reward") >= 2
    assert b"evaluate/success" in sent.read_bytes()


def test_mlflow_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow, of the extra mlflow, is not installed")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    told(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    (samples,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (samples.info.run_name, samples.info.status) == ("run", "FINISHED")
    assert samples.data.params["algorithm.k"] == "4"
    of_role = client.get_metric_history(samples.info.run_id, "tool/reward")
    assert [(metric.step, metric.value) for metric in of_role] == [(0, 0.5), (1, 1.0)]
    assert samples.data.metrics["parts/right_"] == 0.0


def test_trackio_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="trackio, of the extra trackio, is not installed")
    told(tmp_path / "run", "trackio")
    (samples,) = trackio.Api().runs("mine")
    assert samples.name == "run"
