"""TRL trains a reward model on the pairs that `cadre preference-pairs` writes, and scores them as Cadre does."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadre.engines.torch.reward_model import RewardModel
from cadre.types import Message
from cadre_tasks.preference_pairs import PreferencePair
from tests.helpers.extras import skip_without


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_trl_learns_an_order_and_gives_the_scores_of_cadre(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    skip_without("trl")
    from datasets import load_dataset
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    pairs = [
        PreferencePair((Message("user", f"q{i}"),), f"please {i * 7 % 10}", f"never {i * 3 % 10}") for i in range(24)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{pair.to_json()}\n" for pair in pairs))
    judge = str(tmp_path / "judge")
    settings = RewardConfig(
        judge, max_steps=30, learning_rate=2e-3, bf16=False, use_cpu=True, report_to="none", logging_steps=30
    )
    data = load_dataset("json", data_files=str(tmp_path / "pairs.jsonl"), split="train", cache_dir=str(tmp_path / "c"))
    trainer = RewardTrainer(str(folders[name]), settings, train_dataset=data)
    trainer.train()
    trainer.save_model(judge)

    scorer = RewardModel.load(Path(judge))
    model = AutoModelForSequenceClassification.from_pretrained(judge).eval()
    prompts = [pair.prompt for pair in pairs]
    chosen = scorer.score(prompts, [pair.chosen for pair in pairs])
    rejected = scorer.score(prompts, [pair.rejected for pair in pairs])
    assert all(high > low for high, low in zip(chosen, rejected, strict=True))
    for number, row in enumerate(trainer.train_dataset):
        assert tuple(row["chosen_ids"]) == scorer.encode(prompts[number], pairs[number].chosen)
        batch = trainer.data_collator([{key: row[key] for key in ("chosen_ids", "rejected_ids")}])
        scores = model(**batch).logits[:, 0].tolist()
        assert scores == pytest.approx([chosen[number], rejected[number]], abs=1e-5)
