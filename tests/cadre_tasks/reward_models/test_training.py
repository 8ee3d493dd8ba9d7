"""Training of reward models on tiny models: they learn an order, and their loss is the published one."""

import json
import math
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from cadre.cli.app import app
from cadre.engines.torch.reward_model import RewardModel
from cadre.errors import ConfigError, DataError, DivergedError, RunError
from cadre.training.interrupt import Interrupt
from cadre.types import Message
from cadre_tasks.reward_models import training
from cadre_tasks.reward_models.pairs import PreferencePair, pair_to_json, read_pairs
from cadre_tasks.reward_models.training import (
    RewardReport,
    RewardSettings,
    accuracy,
    count_saved_steps,
    load_trainable,
    pick_pairs,
    preference_loss,
    split,
    train_reward_model,
    unfinished_folder,
)
from tests.helpers.reward_models import FAST, toy, trained
from tests.helpers.slow import few_of


def test_a_separable_order_is_learned(folders, tmp_path):
    out, report = trained(folders, tmp_path)
    assert report.held_out == 6
    assert report.after > 0.9
    assert report.losses[-1] < 0.1 < report.losses[0]
    assert accuracy(RewardModel.load(out), toy()) > 0.9
    swapped = [PreferencePair(pair.prompt, pair.rejected, pair.chosen) for pair in toy()]
    assert accuracy(RewardModel.load(out), swapped) < 0.1


def test_the_loss_is_minus_the_log_of_the_sigmoid_of_the_margin(folders, tmp_path):
    # Margins 2, 0 and -1: log(1 + e^-2), log 2 and log(1 + e).
    got = preference_loss(torch.tensor([3.0, 1.0, -2.0]), torch.tensor([1.0, 1.0, -1.0]))
    assert got.tolist() == pytest.approx([math.log1p(math.exp(-2)), math.log(2), math.log1p(math.exp(1))], abs=1e-6)
    # The first step's loss is that mean over its pairs, as the untrained model scores them, however it is cut.
    learned, _ = split(toy(), FAST.validate, FAST.seed)
    scorer = RewardModel(*load_trainable(str(folders["llama"]), FAST.seed))
    pairs = [learned[index] for index in pick_pairs(len(learned), 0, FAST)]
    margins = [
        scorer.score([pair.prompt], [pair.chosen])[0] - scorer.score([pair.prompt], [pair.rejected])[0]
        for pair in pairs
    ]
    expected = sum(math.log1p(math.exp(-margin)) for margin in margins) / len(pairs)
    for name, tokens in (("whole", 4096), ("cut", 150)):
        settings = RewardSettings(steps=1, learning_rate=2e-3, validate=0.25, pairs=8, tokens=tokens)
        report = train_reward_model(toy(), str(folders["llama"]), tmp_path / name, settings, lambda step, loss: None)
        assert report is not None
        assert report.losses[0] == pytest.approx(expected, abs=1e-5)


def test_equal_seeds_give_equal_models(folders, tmp_path):
    settings = RewardSettings(steps=3, learning_rate=1e-3, pairs=4)
    for name in ("a", "b"):
        train_reward_model(toy(), str(folders["llama"]), tmp_path / name, settings, lambda step, loss: None)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second


def test_no_prompt_is_learned_from_and_held_out():
    pairs = [*toy(8), *(PreferencePair(pair.prompt, "other", pair.rejected) for pair in toy(8))]
    learned, held_out = split(pairs, 0.25, 0)
    assert (len(learned), len(held_out)) == (12, 4)
    assert not {pair.prompt for pair in learned} & {pair.prompt for pair in held_out}
    assert split(pairs, 0.25, 0) == (learned, held_out) != split(pairs, 0.25, 1)
    assert split(pairs, 0.0, 0) == (pairs, [])
    with pytest.raises(ConfigError, match="two prompts or more"):
        split(toy(1), 0.5, 0)


def test_every_pair_is_seen_once_an_epoch():
    settings = RewardSettings(pairs=3)
    epoch = [index for step in range(4) for index in pick_pairs(12, step, settings)]
    assert sorted(epoch) == list(range(12))
    assert sorted(pick_pairs(2, 0, settings)[:2]) == [0, 1]  # more pairs a step than there are


def test_nothing_is_overwritten_and_nothing_that_diverged_is_written(folders, tmp_path):
    (tmp_path / "here").mkdir()
    with pytest.raises(RunError, match="exists"):
        train_reward_model(toy(), str(folders["llama"]), tmp_path / "here", FAST, lambda step, loss: None)
    with pytest.raises(DivergedError, match="Lower --learning-rate"):
        train_reward_model(
            toy(), str(folders["llama"]), tmp_path / "far", RewardSettings(8, 1e30), lambda step, loss: None
        )
    assert not (tmp_path / "far").exists()
    assert not unfinished_folder(tmp_path / "far").exists()


def interrupted_at(step: int) -> Callable[[int, float], None]:
    def tell(result: int, loss: float) -> None:
        if result == step:
            signal.raise_signal(signal.SIGINT)

    return tell


@pytest.mark.parametrize("step", few_of([0, 3, 5], [3]))
def test_one_that_was_interrupted_goes_on_as_if_it_had_not_been(folders, tmp_path, step):
    settings, model = RewardSettings(steps=6, learning_rate=1e-3, validate=0.25, pairs=4), str(folders["llama"])
    full = train_reward_model(toy(), model, tmp_path / "whole", settings, lambda step, loss: None)
    assert train_reward_model(toy(), model, tmp_path / "cut", settings, interrupted_at(step)) is None
    assert not (tmp_path / "cut").exists()
    messages: list[int] = []
    assert (
        train_reward_model(toy(), model, tmp_path / "cut", settings, lambda step, loss: messages.append(step)) == full
    )
    assert messages == list(range(step + 1, 6))
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert first == second
    assert not unfinished_folder(tmp_path / "cut").exists()


def test_one_that_was_interrupted_goes_on_with_what_it_was_begun_with_alone(folders, tmp_path):
    settings, model, out = RewardSettings(steps=4, validate=0.25, pairs=4), str(folders["llama"]), tmp_path / "cut"
    train_reward_model(toy(), model, out, settings, interrupted_at(0))
    with pytest.raises(RunError, match="begun with learning_rate=1e-05; expected the same"):
        train_reward_model(toy(), model, out, replace(settings, learning_rate=1e-4), lambda step, loss: None)
    with pytest.raises(RunError, match="begun with checksum="):
        train_reward_model(toy(23), model, out, settings, lambda step, loss: None)
    with pytest.raises(RunError, match="begun with model="):
        train_reward_model(toy(), str(folders["qwen3"]), out, settings, lambda step, loss: None)


def test_a_pair_longer_than_the_context_is_refused_before_the_model_is_loaded(folders, tmp_path):
    source = tmp_path / "no-weights"
    shutil.copytree(folders["llama"], source)
    (source / "model.safetensors").write_bytes(b"cut")
    path = tmp_path / "pairs.jsonl"
    long = PreferencePair((Message("user", "q"),), "a", "b" * 600)
    path.write_text("".join(pair_to_json(pair) + "\n" for pair in (*toy(4), long)))
    with pytest.raises(DataError, match=r"pairs.jsonl, line 5: has 6\d\d tokens; .* 512"):
        train_reward_model(read_pairs(path), str(source), tmp_path / "judge", FAST, lambda step, loss: None)


def test_the_command(folders, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(pair_to_json(pair) + "\n" for pair in toy()))
    settings = ["--steps", "20", "--learning-rate", "2e-3", "--validate", "0.25", "--pairs-per-step", "8"]
    command = ["reward-model", str(path), "--model", str(folders["llama"]), "--out", str(tmp_path / "judge"), *settings]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "step 20/20  loss 0." in result.output
    assert "held-out accuracy on 6 pairs:" in result.output
    assert RewardModel.load(tmp_path / "judge").score([toy(1)[0].prompt], ["please"])
    assert isinstance(CliRunner().invoke(app, command).exception, RunError)


def test_the_margin_over_chance_by_hand(folders, tmp_path):
    """Four of twelve prompts have half of their pairs in order: mean 5/6, squares 12 * (1/36 + 1/36 + 4/36) / 3."""
    report = RewardReport((), 0.5, 0.9, 6, (1.0, 1.0, 0.5) * 4)
    square = 1.96**2
    low = (10 + square / 2) / (12 + square) - 1.96 / (12 + square) * math.sqrt(2 / 3 + square / 4)
    assert report.margin == pytest.approx(low - 0.5, abs=1e-9)
    assert "beats chance by 9.5% at least, on 12 held-out prompts" in report.against_chance()
    assert "does not beat chance" in RewardReport((), 0.5, 0.9, 6, (1.0, 1.0, 0.5)).against_chance()
    assert "does not beat chance" in RewardReport((), 0.5, 0.5, 6, (0.0, 1.0)).against_chance()
    assert math.isnan(RewardReport((), 0.5, 1.0, 1, (1.0,)).margin)
    assert "too few" in RewardReport((), 0.5, 1.0, 1, (1.0,)).against_chance()


def test_prompts_that_are_all_right_are_no_certainty():
    """Wilson's low end for n of n is n / (n + z**2): 2 of 2 is 0.342, 10 of 10 0.722."""
    assert RewardReport((), 0.5, 1.0, 2, (1.0,) * 2).margin == pytest.approx(2 / (2 + 1.96**2) - 0.5)
    assert "does not beat chance" in RewardReport((), 0.5, 1.0, 2, (1.0,) * 2).against_chance()
    assert RewardReport((), 0.5, 1.0, 10, (1.0,) * 10).margin == pytest.approx(10 / (10 + 1.96**2) - 0.5)


def test_the_margin_of_a_trained_judge(folders, tmp_path):
    report = trained(folders, tmp_path)[1]
    assert (report.prompts, report.margin) == ((1.0,) * 6, pytest.approx(6 / (6 + 1.96**2) - 0.5))


def test_what_is_saved_without_held_out_pairs_is_json_and_goes_on(folders, tmp_path):
    """No accuracy is known of no pairs, and NaN is no JSON."""
    settings, model = RewardSettings(steps=3, learning_rate=1e-3, validate=0.0, pairs=4), str(folders["llama"])
    assert train_reward_model(toy(), model, tmp_path / "out", settings, interrupted_at(1)) is None
    (saved,) = unfinished_folder(tmp_path / "out").glob("step-*/progress.json")
    content = json.loads(saved.read_text(), parse_constant=pytest.fail)
    assert content["before"] is None
    assert len(content["losses"]) == 2
    report = train_reward_model(toy(), model, tmp_path / "out", settings, lambda step, loss: None)
    assert report is not None
    assert len(report.losses) == 3
    assert math.isnan(report.before)


def test_an_interrupt_after_the_last_look_at_it_is_saved_too(folders, tmp_path, monkeypatch):
    """Ctrl-C may come between the end of a step and the check whether another one is made."""
    settings, model = RewardSettings(steps=6, learning_rate=1e-3, validate=0.25, pairs=4), str(folders["llama"])

    class Late(Interrupt):
        looks = 0

        @property
        def requested(self):
            self.looks += 1
            return self.looks > 3

        @requested.setter
        def requested(self, value):
            pass

    monkeypatch.setattr(training, "Interrupt", Late)
    assert train_reward_model(toy(), model, tmp_path / "out", settings, lambda step, loss: None) is None
    assert count_saved_steps(tmp_path / "out") == 3


def test_one_whose_save_is_damaged_is_refused(folders, tmp_path):
    settings, model = RewardSettings(steps=3, learning_rate=1e-3, validate=0.0, pairs=4), str(folders["llama"])
    assert train_reward_model(toy(), model, tmp_path / "out", settings, interrupted_at(0)) is None
    (saved,) = unfinished_folder(tmp_path / "out").glob("step-*/progress.json")
    saved.write_text('{"losses": [0.5, "x"], "before": 1}')
    with pytest.raises(RunError, match=r"step-000001 is damaged \(progress\.json has .* bytes in place of"):
        train_reward_model(toy(), model, tmp_path / "out", settings, lambda step, loss: None)
