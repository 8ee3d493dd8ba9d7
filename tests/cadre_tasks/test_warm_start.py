"""A warm start: its loss by hand, going on where it stopped, and training that begins from it."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from cadre.config.experiment import Config, dump
from cadre.config.resolve import find_target, resolve
from cadre.engines.text.model import AnswerEncoder
from cadre.engines.text.template import Template
from cadre.envs.tools import runnable_tools
from cadre.errors import DataError, RunError
from cadre.evaluation.loaded_team import open_team
from cadre.plugins import embedded_models
from cadre.runs.folder import Run, resume_command
from cadre.types import Message, ToolCall
from cadre_tasks import warm_start
from cadre_tasks.warm_start import (
    EXAMPLE_FIELDS,
    SAVE_EVERY,
    Example,
    WarmStart,
    encode_examples,
    example_to_json,
    make_sequence,
    open_warm_start,
    pick_examples,
    read_examples,
    run_warm_start,
    sample_successes,
    write_warm_start,
)
from tests.cadre.cli.calling import call
from tests.helpers.training import configured

SEED = embedded_models()["seed"]
FAST = WarmStart(steps=6, examples=4, learning_rate=1e-2)


def digits() -> list[Example]:
    return [Example("speaker", (Message("user", str(digit)),), str(digit)) for digit in range(4)]


def warmed(chosen: Config, folder: Path, settings: WarmStart = FAST) -> Run:
    experiment, run = resolve(chosen), Run.create(folder, chosen)
    write_warm_start(run, settings, digits())
    data = encode_examples(experiment, digits())
    assert run_warm_start(experiment, run, settings, data, lambda step, metrics: None) == settings.steps
    return run


def losses(run: Run, policy: str = "shared") -> list[float]:
    lines = (run.folder / "warm_start" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[f"{policy}/loss"] for line in lines]


def test_the_loss_is_the_cross_entropy_of_the_answers(speaker: Path, tmp_path: Path) -> None:
    """The first step has four answers of one digit and the end: the mean over their eight tokens."""
    run = warmed(configured(speaker), tmp_path / "run")
    encoder, model = AnswerEncoder.of(str(speaker)), AutoModelForCausalLM.from_pretrained(speaker)
    sums, tokens = 0.0, 0
    for example in digits():
        prompt, answer = encoder.encode(example.prompt, example.answer)
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        sums += float(cross_entropy(logits, torch.tensor(answer), reduction="sum").detach())
        tokens += len(answer)
    assert tokens == 8
    assert losses(run)[0] == pytest.approx(sums / tokens, abs=1e-5)
    assert losses(run)[-1] < 0.5 * losses(run)[0]


def test_only_the_answer_is_learned() -> None:
    sequence = make_sequence("p", "speaker", (5, 6, 7), (8, 9))
    assert sequence.mask == (False, False, False, True, True)
    assert sequence.advantages == (0.0, 0.0, 0.0, 1.0, 1.0)


def test_an_example_longer_than_the_context_is_refused_before_there_is_a_run(speaker: Path, tmp_path: Path) -> None:
    limit = AnswerEncoder.of(str(speaker)).context
    assert limit is not None
    prompt = (Message("user", "1"),)
    spare = limit - sum(map(len, AnswerEncoder.of(str(speaker)).encode(prompt, "")))
    chosen = configured(speaker)
    assert len(encode_examples(resolve(chosen), [Example("speaker", prompt, "2" * spare)])[0].token_ids) == limit
    path = tmp_path / "examples.jsonl"
    long = Example("speaker", prompt, "2" * (spare + 1))
    path.write_text("".join(f"{example_to_json(example)}\n" for example in [*digits(), long]))
    (tmp_path / "digit.yaml").write_text(dump(chosen))
    result = call("warm-start", str(tmp_path / "digit.yaml"), "--on", str(path), "--run", str(tmp_path / "run"))
    output = " ".join(result.err.split())
    assert f"line 5, of speaker, has {limit + 1} tokens" in output
    assert str(path) in output.replace(" ", "")
    assert f"at most {limit}" in output
    assert not (tmp_path / "run").exists()


def test_an_answer_with_the_end_of_a_turn_in_it_is_refused_by_line(speaker: Path, tmp_path: Path) -> None:
    """It would teach the model to go on behind its end, which sampling never does."""
    (tmp_path / "digit.yaml").write_text(dump(configured(speaker)))
    path = tmp_path / "examples.jsonl"
    bad = Example("speaker", (Message("user", "1"),), "1<end>2")
    path.write_text("".join(f"{example_to_json(example)}\n" for example in [*digits(), bad]))
    result = call("warm-start", str(tmp_path / "digit.yaml"), "--on", str(path), "--run", str(tmp_path / "run"))
    assert "line 5, of speaker, has '<end>' in its answer, which begins or ends turns" in " ".join(result.err.split())
    assert not (tmp_path / "run").exists()


def test_tokens_that_begin_or_end_turns_are_found_in_answers() -> None:
    encoder = AnswerEncoder.of(str(SEED))
    for answer, token in (("a <|end|>", "<|end|>"), ("<|user|>a", "<|user|>")):
        assert encoder.turn_token(answer) == token
    assert encoder.turn_token("[end] <|ended|> user: |end|") == ""


def test_an_epoch_sees_every_example_once() -> None:
    data = [make_sequence("p", "speaker", (number,), (1,)) for number in range(6)]
    recorded = [
        pick_example.token_ids[0]
        for step in range(3)
        for pick_example in pick_examples(data, step, WarmStart(examples=4))
    ]
    assert sorted(recorded[:6]) == sorted(recorded[6:]) == list(range(6))


def test_the_run_begins_from_the_warmed_weights_and_trains_on(speaker: Path, tmp_path: Path) -> None:
    chosen = configured(speaker, train={"steps": 1, "tasks_per_step": 4})
    run = warmed(chosen, tmp_path / "run", WarmStart(steps=40, examples=4, learning_rate=1e-2))
    loaded = open_team(find_target(str(run.folder)))
    assert loaded.evaluate(4).success == 1.0
    loaded.close()
    result = call("train", "--run", str(run.folder), "--resume")
    assert result.code == 0, result.err
    assert len(run.metrics()) == 1


def test_one_that_was_stopped_goes_on_as_if_nothing_had_happened(speaker: Path, tmp_path: Path) -> None:
    full = warmed(configured(speaker), tmp_path / "whole")
    chosen = configured(speaker)
    run, experiment = Run.create(tmp_path / "cut", chosen), resolve(chosen)
    write_warm_start(run, FAST, digits())

    class Cut(Exception):
        pass

    def stop(step: int, metrics: dict) -> None:
        if step == 3:
            raise Cut

    original, warm_start.SAVE_EVERY = SAVE_EVERY, 2
    try:
        with pytest.raises(Cut):
            run_warm_start(experiment, run, FAST, encode_examples(experiment, digits()), stop)
        result = call("warm-start", "--run", str(run.folder), "--resume")
    finally:
        warm_start.SAVE_EVERY = original
    assert result.code == 0, result.err
    assert losses(run) == losses(full)
    with pytest.raises(RunError, match="is complete"):
        open_warm_start(run)


@pytest.mark.parametrize("policies", [("shared",), ("first", "second")])
def test_any_map_of_roles_to_policies(policies: tuple[str, ...], speaker: Path, tmp_path: Path) -> None:
    chosen = configured(speaker, env="Pair", policies=policies)
    roles = list(chosen.team.roles)
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(example_to_json(Example(role, (Message("user", "1"),), "2")) + "\n" for role in roles))
    (tmp_path / "pair.yaml").write_text(dump(chosen))
    more = ["--on", str(path), "--steps", "2", "--examples", "2", "--learning-rate", "0.01"]
    result = call("warm-start", str(tmp_path / "pair.yaml"), *more, "--run", str(tmp_path / "run"))
    assert result.code == 0, result.err
    run = Run.open(tmp_path / "run")
    assert all(losses(run, policy)[1] < losses(run, policy)[0] for policy in policies)
    assert (tmp_path / "run" / "checkpoints" / "step-000000").is_dir()


def test_own_successes_are_what_was_said_on_paths_that_win(speaker: Path) -> None:
    result, episodes = sample_successes(resolve(configured(speaker, sampling={"max_tokens": 2})), 8, attempts=64)
    assert episodes == 512
    assert result
    assert all(example.answer == example.prompt[0].content for example in result)
    assert len(set(result)) == len(result)


BAD = {
    "not JSON": ("{", "line 1: it is not JSON"),
    "another encoding": ('{"role": "speaker", "prompt": "1", "answer": "é"}'.encode("latin-1"), "not UTF-8 at byte"),
    "half of a character": ('{"role": "speaker", "prompt": "1", "answer": "\\ud83d"}', "half of a character"),
    "nobody who speaks": (
        '{"role": "speaker", "prompt": [{"role": 5, "content": null}], "answer": "2"}',
        "line 1: got the message",
    ),
    "a role that is a list": ('{"role": [], "prompt": "1", "answer": "2"}', "got the role"),
    "another key": ('{"role": "speaker", "prompt": "1", "text": "2"}', "line 1: got"),
    "a role that nobody trains": ('{"role": "speker", "prompt": "1", "answer": "2"}', "Did you mean speaker"),
    "no answer": ('{"role": "speaker", "prompt": "1", "answer": ""}', "got the answer ''"),
    "a blank answer": ('{"role": "speaker", "prompt": "1", "answer": " \\n"}', r"line 1: got the answer ' \\n'"),
    "a blank prompt": ('{"role": "speaker", "prompt": " ", "answer": "2"}', "line 1: got a blank prompt"),
    "a prompt of numbers": ('{"role": "speaker", "prompt": [1], "answer": "2"}', "got the message 1;"),
    "a message without content": (
        '{"role": "speaker", "prompt": [{"role": "user", "contnet": "1"}], "answer": "2"}',
        "expected a text as its content",
    ),
    "tools that are none": (
        '{"role": "speaker", "prompt": "1", "answer": "2", "tools": [{"name": 1}]}',
        r"tools\[0\].name",
    ),
    "nothing": ("", "is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_examples_are_named(case: str, tmp_path: Path) -> None:
    text, message = BAD[case]
    (tmp_path / "bad.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message):
        read_examples(tmp_path / "bad.jsonl", ["speaker"])


def test_calls_of_tools_are_examples(tmp_path: Path) -> None:
    """Their prompts are those of training: the tools are offered, and earlier calls stand there with their results."""
    tool = runnable_tools([look])["look"].tool
    call_of_it = ToolCall("call_0", "look", '{"number": 3}')
    prompt = (
        Message("user", "3?"),
        Message("assistant", "", (call_of_it,)),
        Message("tool", "7", tool_call_id="call_0"),
    )
    text = '<tool_call>{"name": "look", "arguments": {"number": 3}}</tool_call>'
    examples = [Example("speaker", prompt[:1], text, (tool,)), Example("speaker", prompt, "7", (tool,))]
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(f"{example_to_json(example)}\n" for example in [*examples, examples[0]]))
    assert read_examples(path, ["speaker"]) == examples
    template = Template(AutoTokenizer.from_pretrained(SEED))
    encoder = AnswerEncoder.of(str(SEED))
    for example in examples:
        prompt_ids, answer_ids = encoder.encode(example.prompt, example.answer, example.tools)
        assert prompt_ids == template.prompt_ids(example.prompt, None, (), (tool,))
        message, _ = template.parse_answer(prompt_ids, answer_ids, (tool,))
        assert [(one.name, one.arguments) for one in message.tool_calls] == (
            [("look", '{"number": 3}')] if example is examples[0] else []
        )


def look(number: int) -> int:
    """Return the number behind a door."""
    return number + 4


def test_repeated_examples_count_once_and_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(f"{example_to_json(example)}\n" for example in digits() + digits()[:2]))
    with caplog.at_level("WARNING"):
        assert read_examples(path, ["speaker"]) == digits()
    assert "repeats 2 of its examples; each counts once" in caplog.text


def test_examples_are_from_one_place(tmp_path: Path) -> None:
    assert "got neither of --on FILE and --own TASKS" in call("warm-start", "plan-path").err
    assert "expected the folder to go on with" in call("warm-start", "--resume").err
    assert EXAMPLE_FIELDS == ("role", "prompt", "answer")


def test_a_printed_command_holds_for_a_shell() -> None:
    assert resume_command(Path("my runs/a"), "warm-start") == "cadre warm-start --run 'my runs/a' --resume"
    assert resume_command(Path("a")) == "cadre train --run a --resume"
