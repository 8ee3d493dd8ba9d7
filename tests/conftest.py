"""Shared fixtures: a tiny model folder that answers in digits, and a quiet display."""

import atexit
import gc
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings
from rich.console import Console

# What a test writes need not survive a power cut, and a run syncs some fifty files and folders.
os.fsync = lambda descriptor: None
# What takes longest, in this order, is dealt out first: no worker of `make test` is left with it at the end.
LONGEST = (
    "tests/cadre/engines/torch/test_forward_compiled.py",
    "tests/docs/test_notebooks.py",
    "tests/cadre_programs/test_program.py",
    "tests/docs/test_blocks.py",
    "tests/cadre/cli/test_cli_strange_folders.py",
    "tests/cadre_sandbox/test_checkers.py",
    "tests/cadre/cli/test_cli_damaged_runs.py",
    "tests/cadre/engines/torch/test_decode.py",
    "tests/cadre/cli/test_cli_examples.py",
    "tests/cadre/engines/torch/test_lora.py",
    "tests/cadre/runs/test_resume.py",
    "tests/cadre_tasks/code/test_tester.py",
    "tests/cadre/cli/test_cli_whole_outputs.py",
    "tests/cadre_sandbox/test_inside_repeatable.py",
    "tests/cadre/training/test_loop.py",
    "tests/cadre/training/test_interrupt_signals.py",
)
# How long an example takes says what else the machine does. The suite draws the same examples each time, so that what
# is red is red for everybody; `pytest tests/fuzz --hypothesis-profile=long` looks for new ones.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=3000)
settings.load_profile("suite")


def pytest_sessionstart(session: pytest.Session) -> None:
    # The process that deals tests out runs none, and would import torch before the others can begin.
    if session.config.pluginmanager.hasplugin("dsession"):
        return
    gc.disable()  # until all is imported: collections would look through it again and again
    if hasattr(session.config, "workerinput"):
        # Python takes a million objects apart when it ends. A worker of `make test` has reported everything by then.
        atexit.register(os._exit, 0)
    import torch

    torch.set_num_threads(1)


# The modules of the tests as they were collected.
COLLECTED: dict[str, ModuleType] = {}
PATH: list[str] = []


def pytest_runtest_setup() -> None:
    # User files that the last test loaded are forgotten with their folders: an import compares all modules with all of
    # these folders, which takes seconds after some hundred tests. The next test has the modules of its collection.
    if (user_code := sys.modules.get("cadre.settings.user_code")) and user_code._folders:
        user_code._forget_modules(sys.modules.keys() - COLLECTED.keys())
        sys.path[:] = [entry for entry in sys.path if entry in PATH or entry not in user_code._folders]
        for noted in (user_code._folders, user_code._modules, user_code._changed_at):
            noted.clear()
    sys.modules.update(COLLECTED)


def pytest_collection_finish() -> None:
    COLLECTED.update({name: module for name, module in sys.modules.items() if name.partition(".")[0] == "tests"})
    PATH.extend(sys.path)
    # What was imported stays: collections need not look through a million objects each time.
    gc.freeze()
    gc.enable()
    if forked := sys.modules.get("tests.helpers.forked"):
        forked.start_server()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        gc.unfreeze()  # some libraries report what is left at the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Llama over twelve tokens: ten digits, an end and a pad."""
    from tests.helpers.coordination import write_speaker

    return write_speaker(tmp_path_factory.mktemp("speaker"))


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Notes about runs that tests begin are not left in the home of whoever runs them."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)
