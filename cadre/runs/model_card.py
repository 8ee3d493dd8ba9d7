"""The model card of an exported policy, and its upload to the Hugging Face hub."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import yaml

from cadre.errors import ConfigError, RunError, first_line, one_line
from cadre.runs.folder import Run
from cadre.settings import PolicyConfig

# A repository of the hub, OWNER/NAME.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def escape(text: str) -> str:
    """Return a text of a run's records as one line without Markdown and HTML, as a stranger may have written it."""
    return re.sub(r"([`\[\]|!])", r"\\\1", html.escape(one_line(text), quote=False))


def format_model_card(run: Run, policy: str, step: int, is_adapter: bool) -> str:
    """Return the card of a policy after `step` updates: what it was trained from, on what, with what result, and how it
    is loaded, with the metadata of the hub at its top.

    The records of the run may be a stranger's: what they hold is escaped.
    """
    config, settings = run.config, run.policies[policy]
    roles = [role for role, owner in config.team.roles.items() if owner == policy]
    metadata: dict[str, Any] = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["cadre", "reinforcement-learning", "multi-agent", config.algorithm.name],
    }
    if is_repository(settings.model):
        metadata["base_model"] = settings.model
    recipe, overrides = run.command()
    command = one_line(" ".join(filter(None, ["cadre train", recipe, *overrides]))).replace("`", "'")

    lines = ["---", yaml.safe_dump(metadata, sort_keys=False).rstrip(), "---", ""]
    lines += [f"# {escape(policy)}", ""]
    kind = _describe_kind(settings, is_adapter)
    lines += [
        f"{kind}, trained from {escape(settings.model)} with reinforcement learning as part of a team "
        f"(Cadre): {step} updates of {escape(config.algorithm.name)} on "
        f"{escape(config.env)}. It plays {', '.join(map(escape, roles))}.",
        "",
    ]
    if recipe:
        lines += [f"`{command}`", ""]

    reports = [report for report in run.evaluations() if report["step"] in (0, step)]
    if reports:
        lines += [
            "| updates | success of the team | 95% interval | held-out tasks |",
            "|---|---|---|---|",
            *(
                f"| {report['step']} | {report['success']:.1%} | {report['low']:.1%} to {report['high']:.1%} "
                f"| {report['tasks']} |"
                for report in reports
            ),
            "",
            "The interval is over tasks; it leaves out what another training would give.",
            "",
        ]
    lines += [
        "The chat template is the one that it was trained with; prompts in another form are outside of its training."
    ]
    return "\n".join(lines) + "\n"


def _describe_kind(settings: PolicyConfig, is_adapter: bool) -> str:
    if is_adapter:
        return "A LoRA adapter"
    return "A model with its adapter merged in" if settings.lora is not None else "A model"


def is_repository(name: str) -> bool:
    """Return True for the name of a repository of the hub, and not for a folder."""
    return REPOSITORY.fullmatch(name) is not None and not Path(name).exists()


def check_repository(name: str) -> None:
    """Raise ConfigError unless `name` is OWNER/NAME."""
    if REPOSITORY.fullmatch(name) is None:
        raise ConfigError(f"--push: got {name!r}; expected a repository of the hub, OWNER/NAME. Name one.")


def push_to_hub(folder: Path, repository: str, public: bool) -> str:
    """Upload an exported folder to the hub as one commit, to a new private repository or one that is there; return its
    address. The token is that of `hf auth login` or HF_TOKEN. Raises RunError if the hub refuses or is not reached.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=not public, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message="Export of Cadre")
    except Exception as error:  # noqa: BLE001 - errors of the network are those of the hub's HTTP library
        raise RunError(
            f"--push: {folder} is written, and the upload to {repository} failed: {first_line(error)}; expected a hub "
            "that can be reached and a token that may write there. Run hf auth login, then "
            f"hf upload {repository} {folder}."
        ) from None
    return str(commit.repo_url)
