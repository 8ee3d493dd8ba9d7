"""A trained policy as a folder that others read: what `cadre export` writes."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from cadre.cluster.recipes import EngineRecipe
from cadre.data.atomic import whole
from cadre.errors import ConfigError, nearest
from cadre.experiment.chosen_checkpoint import LATEST, Chosen
from cadre.experiment.resolve import find_model
from cadre.experiment.run_directory import Run
from cadre.settings.trust import refused

# Where transformers writes chat templates.
DEFAULT, NAMED = "chat_template.jinja", "additional_chat_templates"


def export_policy(run: Run, policy: str, out: Path, merge: bool, trust: bool = False, chosen: Chosen = LATEST) -> None:
    """Write the policy of a checkpoint of the run to `out`: a Hugging Face folder, or a PEFT one for an adapter
    that is not to be merged into its base. Nothing else of the run is looked at. Raises ConfigError where it has not
    trained the policy, or where its model needs code of its own that the user does not `trust`."""
    trained = [name for name, settings in run.config.team.policies.items() if not settings.frozen]
    if policy not in trained:
        raise ConfigError(
            f"export: got policy {policy!r}; expected one that {run.folder} trained: {', '.join(trained)}. "
            f"Name one of them.{nearest(policy, trained)}"
        )
    saved = chosen.find(run.folder)
    settings = run.config.team.policies[policy]
    if settings.trust_remote_code and not trust:
        asked = f"the code that ships with {settings.model!r} (team.policies.{policy}.trust_remote_code)"
        raise ConfigError(refused([asked], run.folder))
    engine = EngineRecipe(find_model(policy, settings), {policy: settings}, run.config.train.seed).make()
    with closing(engine):
        engine.work(engine.restore, policy, saved / policy)
        with whole(out) as (built,):
            engine.work(engine.export, policy, built, merge)
            _copy_templates(saved / policy, built)


def _copy_templates(saved: Path, out: Path) -> None:
    """Write the chat templates of the checkpoint to the export: those of the model's folder may have been changed since
    it was trained. Links are not followed, as the folder may be anybody's."""
    if not (saved / DEFAULT).is_file() or (saved / DEFAULT).is_symlink():
        return
    shutil.copyfile(saved / DEFAULT, out / DEFAULT)
    shutil.rmtree(out / NAMED, ignore_errors=True)
    for template in [] if (saved / NAMED).is_symlink() else sorted((saved / NAMED).glob("*.jinja")):
        if template.is_file() and not template.is_symlink():
            (out / NAMED).mkdir(exist_ok=True)
            shutil.copyfile(template, out / NAMED / template.name)
