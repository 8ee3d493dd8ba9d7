"""The parts of a loss: bundled names, functions of the user's own, and invalid ones."""

import pytest

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.errors import ConfigError
from cadre.learn.loss_functions import AGGREGATES, CORRECTIONS, LEVELS, LOSSES
from cadre.settings import LossConfig
from cadre.settings.objective import merge_loss

TABLES = {"ratio": LOSSES, "aggregate": AGGREGATES, "correction": CORRECTIONS, "correction_level": LEVELS}


@pytest.mark.parametrize(("key", "table"), TABLES.items())
def test_every_name_of_a_table_is_a_setting(key, table):
    for name in table:
        assert getattr(LossConfig(**{key: name}), key) == name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.ratio=sequnce", r"loss\.ratio: got 'sequnce'; expected 'token', 'sequence', 'cispo' or 'none'"),
        (
            "loss.aggregate=token_meen",
            r"got 'token_meen'.*file\.py:function.*Did you mean token_mean\?",
        ),
        ("loss.correction=truncated", r"expected 'none', 'truncate' or 'mask'"),
        ("loss.correction_level=tokens", r"expected 'token', 'sequence' or 'geometric'"),
        ("learner.pack=trie", r"learner\.pack: got 'trie'; expected 'auto', 'prefix_tree' or 'padded'"),
    ],
)
def test_an_unknown_name_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        load("plan-path", [override])


def test_a_function_of_a_file_is_looked_up_before_anything_loads(tmp_path):
    (tmp_path / "mine.py").write_text("def halves(length, whole):\n    return 0.5\n")
    named = LossConfig()
    chosen = LossConfig(aggregate=f"{tmp_path}/mine.py:halves")
    assert merge_loss(named, chosen).aggregate == chosen.aggregate
    with pytest.raises(ConfigError, match=r"loss\.aggregate: .*has no 'halfs'.*Did you mean halves\?"):
        merge_loss(named, LossConfig(aggregate=f"{tmp_path}/mine.py:halfs"))


def test_a_function_of_the_users_reads_every_setting_of_a_loss(tmp_path):
    (tmp_path / "mine.py").write_text("def halves(length, whole):\n    return 0.5 / whole.divisor\n")
    own_resolve = resolve(
        load("plan-path", ["loss.divisor=8.0", f"loss.aggregate={tmp_path}/mine.py:halves"]), typed=["loss.divisor"]
    )
    assert own_resolve.plan.loss.divisor == 8.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"correction": "mask", "correction_low": 3.0, "correction_high": 4.0}, r"correction_low: got 3 .* ratio is 1"),
        ({"correction": "mask", "correction_high": 0.8}, r"correction_high: got 0\.8 .* ratio is 1"),
        ({"correction": "truncate", "correction_high": 0.5}, r"correction_high: got 0\.5 .* ratio is 1"),
    ],
)
def test_bounds_of_a_correction_hold_one(changes, message):
    """A mask from 3 to 2 made every weight 0, so that nothing was learned, without a message."""
    with pytest.raises(ConfigError, match=message):
        resolve(load("plan-path", [f"loss.{name}={value}" for name, value in changes.items()]))
    merge_loss(LossConfig(), LossConfig(correction="mask", correction_low=1.0, correction_high=1.0))
    merge_loss(LossConfig(), LossConfig(correction="truncate", correction_low=3.0))  # which it does not read


def test_bounds_of_a_correction_are_those_of_the_preset_and_the_changes_together():
    with pytest.raises(ConfigError, match=r"loss\.correction_high: got 0\.5"):
        merge_loss(LossConfig(correction="truncate"), LossConfig(correction_high=0.5))
    with pytest.raises(ConfigError, match=r"loss\.correction_low: got 3"):
        merge_loss(LossConfig(correction="mask", correction_high=4.0), LossConfig(correction_low=3.0))
