"""Requests of this machine's own page with the token are answered, and no others; every answer's headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="starlette, of the extra view, is not installed")
pytest.importorskip("httpx2", reason="starlette's test client wants httpx2")

from starlette.testclient import TestClient

from cadre.view import reading
from cadre.view.reading import open_runs
from cadre.view.server import make_application
from tests.cadre.view.runs import synthetic

HOST = "127.0.0.1:8765"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    run = synthetic(tmp_path_factory.mktemp("view") / "run", 3, 2)
    return TestClient(make_application(open_runs([run]), "secret", [HOST]), base_url=f"http://{HOST}")


def test_the_page_may_load_nothing_but_its_own_files(client: TestClient) -> None:
    answer = client.get("/secret/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/secret/api/runs", {"host": "evil.example:8765"}),
        ("/secret/api/runs", {"origin": "http://evil.example"}),
        ("/secret/api/runs", {"origin": "null"}),
        ("/secret/api/runs", {"sec-fetch-site": "cross-site"}),
        ("/wrong/api/runs", {}),
        ("/", {}),
        ("/secre", {}),
    ],
)
def test_others_are_refused(client: TestClient, path: str, headers: dict[str, str]) -> None:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 403
    assert "content-security-policy" in answer.headers


def test_nothing_is_written(client: TestClient) -> None:
    assert client.post("/secret/api/runs").status_code == 403


@pytest.mark.parametrize("path", ["../server.py", "%2e%2e/server.py", "api/runs/7/metrics", "api/runs/0/secrets"])
def test_what_is_not_there_is_not_found(client: TestClient, path: str) -> None:
    assert client.get(f"/secret/{path}").status_code in (403, 404)


def told(client: TestClient, path: str) -> Any:
    return client.get(f"/secret/api/runs/0/{path}").json()


def test_steps_are_told_from_where_the_page_has_read(client: TestClient) -> None:
    full = told(client, "metrics?offset=0")
    assert (full["steps"], len(full["columns"]["tool/reward"])) == ([0, 1, 2], 3)
    assert told(client, f"metrics?offset={full['offset']}")["steps"] == []
    assert told(client, f"metrics?offset={full['offset'] + 1}")["steps"] == [0, 1, 2]


def test_steps_of_a_run_that_was_resumed_and_went_on_past_the_page(tmp_path: Path) -> None:
    run = synthetic(tmp_path / "run", 3, 1)
    page = TestClient(make_application(open_runs([run]), "secret", [HOST]), base_url=f"http://{HOST}")
    offset = told(page, "metrics?offset=0")["offset"]
    lines = (run / "metrics.jsonl").read_text().splitlines()
    longer = [json.dumps({**json.loads(line), "time/step_s": 1 / 3}) for line in lines]
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in longer * 2))
    assert told(page, f"metrics?offset={offset}")["steps"] == [0, 1, 2] * 2


def test_a_tree_has_what_is_said_of_its_samples_and_tokens_apart(client: TestClient) -> None:
    sample = told(client, "tree?at=1")["nodes"][0]["samples"]["tool"][3]
    assert sample["said"]["credit"]["advantage"] == 1.5
    assert sample["said"]["critic"]["values"] == [0.25]
    assert "token_ids" not in sample
    tokens = told(client, "tokens?at=1&node=0&role=tool&index=3")
    assert tokens["prompt"] == ["a", "b", "c"]
    assert len(tokens["tokens"]) == len(tokens["logprobs"]) == len(tokens["entropy"])
    assert told(client, "table?first=0&count=1")[0][0][:3] == [0, "tool", 0]
    assert client.get("/secret/api/runs/0/tree?at=99").status_code == 404


def test_an_exported_tree_is_read_once_for_the_tokens_of_all_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = open_runs([synthetic(tmp_path / "run", 3, 2)])
    one_by_one = {
        (node, role, index): run.tokens(1, (node, role, index))[node, role, index]
        for node, decision in enumerate(run.tree(1)["nodes"])
        for role, samples in decision["samples"].items()
        for index in range(len(samples))
    }
    read: list[Path] = []
    entries = reading.read_entries

    def counted(folder: Path) -> list[Any]:
        read.append(folder)
        return entries(folder)

    monkeypatch.setattr(reading, "read_entries", counted)
    assert run.tokens(1) == one_by_one
    assert len(one_by_one) > 2
    assert len(read) == 1


def test_every_run_of_the_page_has_a_name_of_its_own(tmp_path: Path) -> None:
    runs = [synthetic(tmp_path / machine / "runs" / "x", 3, 1) for machine in "ab"]
    assert [reader.name for reader in open_runs([*runs, runs[0]])] == ["a/runs/x", "b/runs/x"]
