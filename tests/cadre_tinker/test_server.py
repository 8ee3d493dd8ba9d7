"""Requests over HTTP as Tinker's client makes them: their order, several clients, samples, hostile names."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cadre_tinker import server
from tests.cadre.cli.calling import call
from tests.cadre_tinker.served import Served, read_training_response, training_request

DATA = [([5, 9, 200, 31], {"target_tokens": [9, 200, 31, 7], "weights": [1.0, 1.0, 0.5, 1.0]})]
PROMPT = [5, 9, 200, 31]


def test_a_supervised_step_lowers_the_loss(served: Served) -> None:
    run = served.run(served.session())
    losses = []
    for step in range(3):
        logprobs, metrics = served.train(run, 2 * step + 1, DATA)
        weighted = [weight * one for weight, one in zip([1, 1, 0.5, 1], logprobs[0], strict=True)]
        assert metrics["loss:sum"] == pytest.approx(-sum(weighted))
        losses.append(metrics["loss:sum"])
        assert served.step(run, 2 * step + 2)["metrics"]["unclipped_grad_l2:mean"] > 0
    assert losses[0] > losses[1] > losses[2]
    about = served.post("get_info", {"model_id": run})
    assert (about["lora_rank"], about["model_data"]["model_name"]) == (4, "tiny")
    assert Path(about["model_data"]["tokenizer_id"], "tokenizer.json").is_file()


def test_requests_are_computed_in_the_order_of_their_numbers(served: Served) -> None:
    """The step is sent before its forward_backward, which is sent before a loss that it must not see."""
    session = served.session()
    first, second = served.run(session, 0), served.run(session, 1)
    late = served.post("forward_backward", training_request(first, 3, DATA, forward_only=True))
    step = served.post("optim_step", {"model_id": first, "seq_id": 2, "adam_params": {"learning_rate": 0.01}})
    served.train(second, 1, DATA)
    served.step(second, 2)
    expected = served.train(second, 3, DATA, forward_only=True)
    status, answer = served.send("POST", "retrieve_future", {"request_id": "nobody"})
    assert (status, "not kept, or never was" in answer["error"]) == (410, True)
    served.train(first, 1, DATA)
    assert "metrics" in served.fetch(step)
    assert read_training_response(served.fetch(late)) == expected


def test_a_result_that_is_not_there_yet_is_asked_for_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL_S", 0.01)
    run = served.run(served.session())
    promise = served.post("optim_step", {"model_id": run, "seq_id": 2, "adam_params": {}})
    status, answer = served.send("POST", "retrieve_future", {"request_id": promise["request_id"]})
    assert (status, answer["type"]) == (408, "try_again")


def test_a_request_that_is_sent_twice_is_computed_once(served: Served) -> None:
    run = served.run(served.session())
    body = training_request(run, 1, DATA)
    promises = [served.post("forward_backward", body) for _ in range(2)]
    assert promises[0] == promises[1]
    once = served.step(run, 2)["metrics"]
    other = served.run(served.session())
    served.train(other, 1, DATA)
    assert served.step(other, 2)["metrics"] == once


def test_what_is_wrong_with_a_request_is_its_result_and_holds_up_no_other(served: Served) -> None:
    """Mistake: a rejected request leaves a gap in the numbers, behind which everything waits for ever."""
    run = served.run(served.session())
    bad = [
        served.result("forward_backward", training_request(run, 1, DATA, "gspo")),
        served.result("optim_step", {"model_id": run, "seq_id": 2, "optimizer_params": {"type": "dimuon"}}),
        served.result("save_weights_external", {"model_id": run, "seq_id": 3, "path": "x"}),
        served.result("save_weights", {"model_id": run, "seq_id": 4, "path": "../../x"}),
        served.result("optim_step", {"model_id": run, "seq_id": 5, "adam_params": {"beta1": 2}}),
        served.result("load_weights", {"model_id": run, "seq_id": 6, "path": "tinker://x", "optimizer": True}),
        served.result("save_weights", {"model_id": run, "seq_id": 7, "path": "x", "sharded": True}),
    ]
    words = ("loss_fn: got 'gspo'", "adam_params: field required", "save_weights_external: is not supported")
    words += (
        "path: got 'tinker://",
        "adam_params.beta1: input should be less than 1",
        "load_weights: is not supported",
    )
    words += ("sharded: got True, which is not supported here",)
    for answer, expected in zip(bad, words, strict=True):
        assert answer["category"] == "user"
        assert expected in answer["error"]
    assert served.train(run, 8, DATA)[1]["loss:sum"] > 0


def test_two_clients_at_once_train_as_each_alone(served: Served) -> None:
    def train(scale: float) -> list[float]:
        run = served.run(served.session())
        data = [(DATA[0][0], {**DATA[0][1], "weights": [scale] * 4})]
        promises = []
        for step in range(4):
            promises.append(served.post("forward_backward", training_request(run, 2 * step + 1, data)))
            served.post("optim_step", {"model_id": run, "seq_id": 2 * step + 2, "adam_params": {"learning_rate": 0.01}})
        return [read_training_response(served.fetch(promise))[1]["loss:sum"] for promise in promises]

    alone = [train(scale) for scale in (1.0, -0.5)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, (1.0, -0.5))) == alone


def test_a_sampler_has_the_weights_of_its_moment(served: Served) -> None:
    """Snapshots and saved weights stay what they were when the run goes on; both give the same samples."""
    session = served.session()
    run = served.run(session)
    base = served.post("create_sampling_session", {"session_id": session, "base_model": "tiny"})["sampling_session_id"]
    served.train(run, 1, DATA)
    served.step(run, 2, learning_rate=0.1)
    snapshot = served.result("save_weights_for_sampler", {"model_id": run, "seq_id": 3})["sampling_session_id"]
    path = served.result("save_weights_for_sampler", {"model_id": run, "seq_id": 4, "path": "s.1"})["path"]
    served.train(run, 5, DATA)
    served.step(run, 6, learning_rate=0.1)
    body = {"session_id": session, "sampling_session_seq_id": 5, "model_path": path}
    opened = served.post("create_sampling_session", body)["sampling_session_id"]
    assert served.send("GET", f"samplers/{opened}")[1]["base_model"] == "tiny"
    params = {"max_tokens": 8, "seed": 3, "stop": []}
    answers = [
        served.sample(name, 0, PROMPT, params, num_samples=2, prompt_logprobs=True) for name in (snapshot, opened, base)
    ]
    assert (answers[0][0], answers[0][1][1:]) == (answers[1][0], answers[1][1][1:])
    assert answers[0][1][1:] != answers[2][1][1:]
    samples, prompt_logprobs = answers[0]
    assert [(len(tokens), len(logprobs), reason) for tokens, logprobs, reason in samples] == [(8, 8, 1), (8, 8, 1)]
    assert samples[0] != samples[1]
    assert math.isnan(prompt_logprobs[0])
    tokens, logprobs, _ = samples[0]
    _, scored = served.sample(snapshot, 1, [*PROMPT, *tokens], {"max_tokens": 1}, prompt_logprobs=True)
    assert scored[len(PROMPT) :] == pytest.approx(logprobs, abs=1e-5)
    _, last = served.sample(snapshot, 2, PROMPT, {"max_tokens": 1}, prompt_logprobs=True, prompt_logprobs_last_n=1)
    assert [math.isnan(number) for number in last] == [True, True, True, False]


def test_stops_are_the_ones_of_the_request(served: Served) -> None:
    session = served.session()
    base = served.post("create_sampling_session", {"session_id": session, "base_model": "tiny"})["sampling_session_id"]
    ((tokens, _, reason),), _ = served.sample(base, 0, PROMPT, {"max_tokens": 30, "seed": 1, "stop": []})
    assert (len(tokens), reason) == (30, 1)
    end = next(number for number, token in enumerate(tokens) if token < 256)
    by_id = {"max_tokens": 30, "seed": 1, "stop": [tokens[end]]}
    ((stopped, _, reason),), _ = served.sample(base, 1, PROMPT, by_id)
    assert (stopped, reason) == (tokens[: tokens.index(tokens[end]) + 1], 0)
    text = served.service.model.loaded.tokenizer.decode([tokens[end]])
    ((stopped, _, reason),), _ = served.sample(base, 2, PROMPT, {"max_tokens": 30, "seed": 1, "stop": text})
    assert (text in served.service.model.loaded.tokenizer.decode(stopped), reason) == (True, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk_prompt_logprobs": 5}, "topk_prompt_logprobs: got 5, which is not supported here"),
        ({"num_samples": 0}, "num_samples: input should be greater than or equal to 1"),
        (
            {"prompt": {"chunks": [{"type": "image", "data": ""}]}},
            "type: input should be 'encoded_text'",
        ),
        ({"prompt": {"chunks": []}}, "prompt: got 0 tokens; expected 1 to 511 ids from 0 to 259"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [260]}]}}, "prompt: got 1 tokens"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature: input should be greater"),
        ({"sampling_session_id": "nobody"}, "sampling session: got 'nobody'"),
    ],
)
def test_samples_that_cannot_be_drawn(served: Served, change: dict[str, Any], message: str) -> None:
    session = served.session()
    base = served.post("create_sampling_session", {"session_id": session, "base_model": "tiny"})["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]}
    body = {"sampling_session_id": base, "seq_id": 0, "prompt": prompt, "sampling_params": {"max_tokens": 2}}
    status, answer = served.send("POST", "asample", {**body, **change})
    assert status in (400, 404)
    assert message in answer["error"]


def test_a_run_goes_on_in_another_session(served: Served) -> None:
    run = served.run(served.session())
    served.train(run, 1, DATA)
    served.step(run, 2)
    path = served.result("save_weights", {"model_id": run, "seq_id": 3, "path": "final"})["path"]
    assert path == f"tinker://{run}/weights/final"
    after = served.train(run, 4, DATA)
    step = served.step(run, 5)
    body = {"session_id": served.session(), "model_seq_id": 0, "path": path, "optimizer": True}
    again = served.result("load_weights", body)["model_id"]
    assert served.train(again, 1, DATA) == after
    assert served.step(again, 2) == step
    about = served.post("weights_info", {"tinker_path": path})
    assert about == {"base_model": "tiny", "is_lora": True, "lora_rank": 4, "train_unembed": False}
    answer = served.result("save_weights", {"model_id": run, "seq_id": 6, "path": "final"})
    assert "exists" in answer["error"]


@pytest.mark.parametrize(
    "path",
    [
        "tinker://{run}/weights/../../../secret",
        "tinker://../weights/x",
        "tinker://{run}/weights/..",
        "tinker://{run}/weights/.hidden",
        "tinker://{run}/optimizer/x",
        "tinker://{run}/weights/a/b",
        "tinker://{run}/weights/x\0",
        "tinker://{run}/weights/" + "x" * 300,
        "/etc/passwd",
        "tinker://{run}/weights/absent",
    ],
)
def test_paths_lead_nowhere_else(served: Served, path: str) -> None:
    session = served.session()
    run = served.run(session)
    named = path.replace("{run}", run)
    status, answer = served.send("POST", "create_sampling_session", {"session_id": session, "model_path": named})
    assert (status, "path: got" in answer["error"]) == (400, True)
    body = {"session_id": session, "model_seq_id": 1, "path": named, "optimizer": False}
    assert served.send("POST", "load_weights", body)[0] == 400
    assert served.send("POST", "weights_info", {"tinker_path": named})[0] == 400


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "", "x y", "\0", "ü"])
def test_names_of_checkpoints_stay_below_their_run(served: Served, name: str) -> None:
    state = served.service.model.state
    before = sorted(state.parent.rglob("*"))
    run = served.run(served.session())
    answer = served.result("save_weights_for_sampler", {"model_id": run, "seq_id": 1, "path": name or "x" * 200})
    assert "path: got" in answer["error"]
    assert sorted(state.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("create_model", b"{", 400, "not JSON"),
        ("create_model", {}, 400, "session_id: field required"),
        ("create_model", [1], 400, "got list, expected an object"),
        ("forward_backward", b"\x08", 400, "not a protocol buffer"),
        ("forward_backward", b"", 404, "model_id: got ''"),
        ("optim_step", {"model_id": "nobody", "seq_id": 1}, 404, "model_id: got 'nobody'"),
        ("create_custom_loss", {}, 404, "create_custom_loss: is not supported by Cadre; expected one of asample"),
        ("session_heartbeat", {"session_id": "nobody"}, 410, "'nobody' is no session"),
    ],
)
def test_bad_requests_are_refused_with_what_is_wrong(
    served: Served, path: str, body: Any, status: int, message: str
) -> None:
    got, answer = served.send("POST", path, body)
    assert (got, message in answer["error"]) == (status, True), answer


def test_the_client_names_the_model_of_the_server(served: Served) -> None:
    """Another name may stand for another tokenizer, whose ids would train on nonsense."""
    body = {
        "session_id": served.session(),
        "model_seq_id": 0,
        "base_model": "Qwen/Qwen3-8B",
        "lora_config": {"rank": 4},
    }
    status, answer = served.send("POST", "create_model", body)
    assert status == 400
    assert "base_model: got 'Qwen/Qwen3-8B'; expected 'tiny', the model of this server" in answer["error"]
    _, models = served.send("GET", "get_server_capabilities")
    assert models["supported_models"][0]["model_name"] == "tiny"


def test_a_client_needs_the_key(served: Served) -> None:
    stranger = Served(served.service, served.port, "tml-wrong")
    for method, path in (("GET", "healthz"), ("POST", "create_session"), ("POST", "sessions/x/finish")):
        assert stranger.send(method, path, {})[0] == 401


def test_a_body_has_a_limit(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 100)
    status, answer = served.send("POST", "telemetry", {"events": "x" * 200})
    assert (status, "got a body above 100 bytes" in answer["error"]) == (413, True)
    assert served.post("client/config", {})["pjwt_auth_enabled"] is False


def test_sessions_that_have_ended_leave_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One says that it has finished, the other is not heard of any more."""
    adapters = served.service.model.loaded.adapters
    sessions = [served.session() for _ in range(2)]
    runs = [served.run(session) for session in sessions]
    samplers = [served.result("save_weights_for_sampler", {"model_id": run, "seq_id": 1}) for run in runs]
    names = {*runs, *(sampler["sampling_session_id"] for sampler in samplers)}
    assert names <= adapters.pairs.keys()
    for run in runs:  # what waits for a number that never comes is let go of, too
        served.post("forward_backward", training_request(run, 9, DATA))
    assert served.service._waiting_bytes > 0
    served.post(f"sessions/{sessions[0]}/finish", {"reason": {"type": "success"}})
    assert runs[0] not in adapters.pairs
    served.service._sessions[sessions[1]] -= server.SESSION_S + 1
    served.session()
    assert not names & adapters.pairs.keys()
    assert served.service._waiting_bytes == 0
    assert not [name for name in served.service._requests if name.partition(":")[0] in sessions]
    assert served.send("POST", "optim_step", {"model_id": runs[1], "seq_id": 2, "adam_params": {}})[0] == 404


def test_limits_of_what_is_held(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    session = served.session()
    monkeypatch.setattr(server, "MAX_SAMPLERS", 2)
    body = {"session_id": session, "base_model": "tiny"}
    first, second, third = (served.post("create_sampling_session", body)["sampling_session_id"] for _ in range(3))
    assert [served.send("GET", f"samplers/{name}")[0] for name in (first, second, third)] == [404, 200, 200]
    monkeypatch.setattr(server, "MAX_RUNS", len(served.service._queues))
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4}}
    assert served.send("POST", "create_model", body)[0] == 400
    monkeypatch.undo()
    run = served.run(session)
    monkeypatch.setattr(server, "MAX_WAITING_BYTES", 10)
    assert served.send("POST", "forward_backward", training_request(run, 1, DATA))[0] == 429


def test_the_command_serves_and_refuses(tmp_path: Path) -> None:
    for arguments, message in (
        (["serve"], "serve: got nothing to serve"),
        (["serve", "seed", "--state", "x"], "--state: got no --tinker"),
        (["serve", "--tinker", "seed", "--role", "a=b"], "--role: would be ignored beside --tinker"),
        (["serve", "--tinker", "seed", "--key", "abc"], "--key: got another beginning; expected tml-"),
        (["serve", "--tinker", "seed", "team.x=1"], "team: got it beside --tinker; expected device, dtype"),
        (["serve", "--tinker", "seed", "dtype=float16"], "dtype: input should be 'auto', 'float32' or 'bfloat16'"),
    ):
        result = call(*arguments)
        assert (result.code, message in result.err) == (2, True), result.err
