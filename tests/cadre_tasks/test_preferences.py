"""Training on given pairs: nothing is sampled, and the loss is that of DPO by plain torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoTokenizer

import cadre
from cadre.errors import ConfigError, DataError
from cadre_tasks.preferences import Preferences
from tests.cadre.cli.calling import call

GAMES = str(Path(cadre.__file__).parents[1] / "cadre_tasks" / "models" / "games")
MA_DPO = {"name": "ma_dpo", "k": 2, "beta": 0.5}


def row(number: int, role: str = "anna") -> dict[str, Any]:
    """A role's row; the chosen side follows from a word of the prompt."""
    sides = ("Left", "Right") if number % 2 else ("Right", "Left")
    prompt = f"lamp {'green' if number % 2 else 'red'} {number}\nmoves: Left Right"
    return {"role": role, "prompt": prompt, "chosen": sides[0], "rejected": sides[1]}


ROWS = [row(number) for number in range(12)]


def train(folder: Path, rows: list[dict[str, Any]], steps: int, **sections: Any) -> Any:
    settings: dict[str, Any] = {
        "env": "cadre_tasks.preferences:Preferences",
        "team": {"policies": {"one": "games"}, "roles": {"anna": "one"}},
        "algorithm": MA_DPO,
        "train": {"tasks_per_step": len(rows), "checkpoint_every": 1},
        "learner": {"learning_rate": 1e-3},
        "held_out": rows,
        "evaluate": {"tasks": len(rows)},
    }
    settings |= sections
    splits = {"train": rows, "test": settings.pop("held_out")}
    return cadre.train(tasks=splits, steps=steps, run=folder, quiet=True, **settings)


def answer_logprob(model: Any, tokenizer: Any, prompt: str, answer: str) -> torch.Tensor:
    """Return log pi(answer and the end of the turn | prompt) by transformers alone."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}], tokenize=False
    )
    start, ids = (tokenizer(part, add_special_tokens=False).input_ids for part in (text, whole))
    logits = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return logits.gather(1, torch.tensor(ids[1:])[:, None])[len(start) - 1 :].sum()


def dpo_loss(now: Any, start: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the mean of -log sigmoid(beta * (difference of the log-ratios)), and the fraction with a positive one."""
    margins = []
    for each in rows:
        chosen, rejected = (
            answer_logprob(now, tokenizer, each["prompt"], each[name])
            - answer_logprob(start, tokenizer, each["prompt"], each[name])
            for name in ("chosen", "rejected")
        )
        margins.append(MA_DPO["beta"] * (chosen - rejected))
    losses = -logsigmoid(torch.stack(margins))
    return float(losses.mean()), float((torch.stack(margins) > 0).float().mean())


def test_the_loss_is_that_of_dpo_by_plain_torch(tmp_path: Path) -> None:
    """And an evaluation counts the pairs whose chosen answer has more probability."""
    trained = train(tmp_path / "run", ROWS, 3)
    metrics, before, tokenizer = trained.metrics(), trained.evaluations()[0], AutoTokenizer.from_pretrained(GAMES)
    trained.close()
    start = AutoModelForCausalLM.from_pretrained(GAMES)
    with torch.no_grad():
        margins = [
            answer_logprob(start, tokenizer, each["prompt"], each["chosen"])
            - answer_logprob(start, tokenizer, each["prompt"], each["rejected"])
            for each in ROWS
        ]
    assert before["success"] == pytest.approx(sum(margin > 0 for margin in margins) / len(ROWS))
    assert metrics[0]["preference/loss"] == pytest.approx(math.log(2))
    with torch.no_grad():
        for step in (1, 2):
            folder = next((tmp_path / "run" / "checkpoints" / f"step-{step:06}").glob("*/config.json")).parent
            loss, accuracy = dpo_loss(AutoModelForCausalLM.from_pretrained(folder), start, tokenizer, ROWS)
            assert metrics[step]["preference/loss"] == pytest.approx(loss, abs=1e-5)
            assert metrics[step]["preference/accuracy"] == pytest.approx(accuracy)
            assert metrics[step]["preference/pairs"] == len(ROWS)
    assert metrics[2]["preference/loss"] < metrics[1]["preference/loss"] < metrics[0]["preference/loss"]


def test_joint_pairs_are_one_decision_of_two_roles(tmp_path: Path) -> None:
    """Both policies are the same model before the first update, so that their gradients are equal."""
    joint = [
        {name: {role: row(number)[name] for role in ("anna", "ben")} for name in ("prompt", "chosen", "rejected")}
        for number in range(6)
    ]
    games = {"policies": {"one": "games", "other": "games"}, "roles": {"anna": "one", "ben": "other"}}
    trained = train(tmp_path / "run", joint, 2, team=games)
    assert [line["preference/pairs"] for line in trained.metrics()] == [6, 6]
    assert trained.metrics()[0]["one/grad_norm"] == pytest.approx(trained.metrics()[0]["other/grad_norm"])
    (node, *_) = (kept.tree.root for kept in trained.trees())
    assert {role: [sample.text for sample in samples] for role, samples in node.samples.items()} in [
        dict.fromkeys(("anna", "ben"), sides) for sides in (["Left", "Right"], ["Right", "Left"])
    ]
    trained.close()


def test_rows_of_trl_are_pairs_of_an_agent() -> None:
    message = {"role": "user", "content": "2 + 2?"}
    answers = {name: [{"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    (task,) = Preferences.tasks("train", tasks={"train": [{"prompt": [message], **answers}]})
    assert task.data == {"prompts": {"agent": [message]}, "pairs": {"agent": ["chosen", "rejected"]}}
    (seen,) = Preferences(task).observe().values()
    assert (seen.messages[0].content, seen.answers) == ("2 + 2?", ("chosen", "rejected"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": None}, "got the answer None; expected"),
        ({"rejected": " "}, "got the answer ' '"),
        ({"rejected": [{"role": "user", "content": "no"}]}, "got the answer"),
        ({"rejected": "Right"}, "answers are equal"),
        ({"prompt": 3}, "got the prompt 3"),
        ({"prompt": {"anna": "?"}, "chosen": {"anna": "a"}, "rejected": {"ben": "b"}}, "expected the same roles"),
    ],
)
def test_a_bad_row_is_named_before_a_model_loads(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = [*ROWS[1:3], ROWS[0] | change]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    with pytest.raises(DataError, match=message) as caught:
        Preferences.tasks("train", tasks=str(tmp_path / "pairs.jsonl"), held_out=0.0)
    assert "row-2" in str(caught.value)
    result = call(
        "train", str(tmp_path / "pairs.jsonl"), "env=cadre_tasks.preferences:Preferences", "algorithm=ma_dpo",
        "model=/no/such/model", "held_out=0.0", "evaluate.tasks=0", "--run", str(tmp_path / "run"),
    )  # fmt: skip
    assert (result.code, "row-2" in result.err.replace("\n", "")) == (2, True), result.err


def test_another_number_of_completions_is_refused(tmp_path: Path) -> None:
    """Before a model loads, and a run begins."""
    with pytest.raises(ConfigError, match="gives all completions; got k=3 and the engines torch, expected k=2"):
        train(tmp_path / "run", ROWS, 1, algorithm={"name": "ma_dpo", "k": 3})
    assert not (tmp_path / "run").exists()
