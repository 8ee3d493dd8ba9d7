"""What a check says of a program: whether it asks for the same when it is started again, and how not."""

import asyncio
import json

from cadre.envs.spec import EnvSpec
from cadre_programs import instances
from cadre_programs.check import examine
from tests.helpers.programs import AGENTS, ROLES


def report(tmp_path, name, **settings):
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps({"word": word, "program": name}) + "\n" for word in ("fox", "owl"))
    )
    given = {"run": f"{AGENTS}:run", "roles": ROLES, "tasks": str(tmp_path / "tasks.jsonl"), "held_out": 0.0}
    return asyncio.run(examine(EnvSpec("program", {**given, **settings})))


def test_a_program_that_asks_for_the_same(tmp_path):
    told = report(tmp_path, "relay")
    assert told.broken == ()
    assert told.held[0] == "2 of 2 tasks, played again with the same answers, asked for the same."
    assert told.held[1] == "4.0 calls an episode."
    assert set(told.prompts) == set(ROLES)


def test_a_program_that_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(instances, "REPLACED_S", 0.2)
    told = report(tmp_path, "odd")
    assert len(told.broken) == 2
    assert "-user: fox" in told.broken[0]
    assert "replayable=false" in told.broken[0]
    assert told.notes == ("coder was never asked for; a role that never acts is not trained.",)
    assert report(tmp_path, "odd", replayable=False).broken == ()


def test_a_program_that_fails_on_nonsense(tmp_path):
    told = report(tmp_path, "raises")
    assert told.broken[0].startswith("No task completes. The first, task train-0: KeyError: 'mistake'")
    assert "KeyError: 'mistake'" in told.notes[0]


def test_missing_settings_are_named():
    told = asyncio.run(examine(EnvSpec("program", {"roles": ROLES})))
    assert told.broken[0].startswith("settings.run: missing")
