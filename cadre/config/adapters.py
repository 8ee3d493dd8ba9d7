"""Policies that start from a LoRA adapter: a PEFT folder, such as `cadre export` writes for them.

The folder's settings (base, rank, alpha, modules) are read before any model loads and become the policy's own settings.
Its weights are read later, by `cadre.engines.torch`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cadre.errors import ConfigError
from cadre.file_limits import read_json
from cadre.files import OpenRecord, validation_message
from cadre.plugins import embedded_models
from cadre.settings.yaml_file import ONLY_POLICY

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
# What makes an adapter something other than two matrices beside each of some linear layers.
UNSUPPORTED_OPTIONS = (
    *("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "layer_replication", "rank_pattern"),
    *("alpha_pattern", "fan_in_fan_out", "alora_invocation_tokens", "target_parameters", "use_qalora", "arrow_config"),
    *("use_bdlora", "kasa_config", "monteclora_config", "layers_to_transform", "exclude_modules"),
)
# These change the base's weights when they begin, so that the adapter belongs to another base than it names.
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


class PeftConfig(OpenRecord):
    """The part of `adapter_config.json` that every plain LoRA has; other fields are looked at by name."""

    peft_type: Literal["LORA"]
    r: Annotated[int, Field(ge=1)]
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    target_modules: list[str]


def is_adapter(folder: Path) -> bool:
    """Return True if a folder holds an adapter and no model."""
    return (folder / CONFIG_FILE).is_file() and not (folder / "config.json").is_file()


def apply_adapter_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration whose policies on adapters name the base, and their lora as the folder has it."""
    changed = dict(raw)
    team, algorithm = raw.get("team"), raw.get("algorithm")
    if isinstance(team, str) and is_adapter(Path(team).expanduser()):
        team = {"policies": {ONLY_POLICY: team}}
    if isinstance(team, Mapping) and isinstance(team.get("policies"), Mapping):
        policies = {
            name: _policy_with_adapter(f"team.policies.{name}", policy) for name, policy in team["policies"].items()
        }
        changed["team"] = {**team, "policies": policies}
    critic = algorithm.get("critic") if isinstance(algorithm, Mapping) else None
    if isinstance(critic, Mapping) and "policy" in critic:
        policy = _policy_with_adapter("algorithm.critic.policy", critic["policy"])
        changed["algorithm"] = {**algorithm, "critic": {**critic, "policy": policy}}  # type: ignore[dict-item]
    teacher = raw.get("teacher")
    if isinstance(teacher, Mapping) and "model" in teacher:
        changed["teacher"] = {**teacher, "model": _policy_with_adapter("teacher.model", teacher["model"])}
    return changed


def _policy_with_adapter(key: str, policy: Any) -> Any:
    """Return the policy with the settings of its adapter's folder, if it names one."""
    written = {"model": policy} if isinstance(policy, str) else policy
    if not isinstance(written, Mapping) or written.get("url") is not None:
        return policy
    lora, model = written.get("lora"), written.get("model")
    lora = dict(lora) if isinstance(lora, Mapping) else {}
    setting = f"{key}.lora.path"
    if lora.get("path") is None and isinstance(model, str) and is_adapter(Path(model).expanduser()):
        lora["path"], model, setting = model, None, f"{key}.model"
    if not isinstance(lora.get("path"), str):
        return policy
    folder = Path(lora["path"]).expanduser()
    described = read_adapter(setting, folder)
    return {
        **written,
        "model": _base_model(setting, folder, described, model),
        "lora": _lora_settings(key, folder, described, lora),
    }


def read_adapter(setting: str, folder: Path) -> dict[str, Any]:
    """Return the configuration of an adapter's folder. Raises ConfigError unless it is a plain LoRA in safetensors."""

    def fault(got: str, advice: str) -> ConfigError:
        return ConfigError(
            f"{setting}: {folder} {got}; expected a PEFT folder of a plain LoRA, {CONFIG_FILE} and {WEIGHTS_FILE}. "
            f"{advice}"
        )

    if not (folder / CONFIG_FILE).is_file():
        raise fault(f"holds no {CONFIG_FILE}" if folder.is_dir() else "is no folder", "Fix the path.")
    try:
        described = PeftConfig.model_validate(read_json(folder / CONFIG_FILE)).model_dump()
    except ValidationError as error:
        raise fault(
            f"has an {CONFIG_FILE} with {validation_message(error)}", "Take it from where it was made."
        ) from None
    except (OSError, ValueError) as error:
        raise fault(f"has an {CONFIG_FILE} that cannot be read ({error})", "Take it from where it was made.") from None
    init = described.get("init_lora_weights")
    unsupported = {name: described.get(name) for name in UNSUPPORTED_OPTIONS}
    unsupported |= {"bias": described.get("bias", "none") != "none" and described["bias"]}
    unsupported |= {"init_lora_weights": isinstance(init, str) and init.startswith(BASE_CHANGING_INITS) and init}
    for name, value in unsupported.items():
        if value:
            raise fault(f"has {name}={value!r}", "Merge it into its base with PEFT (merge_and_unload), and name that.")
    if not (folder / WEIGHTS_FILE).is_file():
        raise fault(f"holds no {WEIGHTS_FILE}", "Save it with save_pretrained(safe_serialization=True).")
    return described


def _base_model(setting: str, folder: Path, described: Mapping[str, Any], model: Any) -> Any:
    """Return the base model: the policy's, which has to be the adapter's, or the one that the adapter names."""
    base = described.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        if model is None:
            raise ConfigError(
                f"{setting}: {folder} names no base model; expected one. Write model: BASE, lora: {{path: {folder}}}."
            )
        return model
    if model is None:
        return next((name for name, home in embedded_models().items() if _is_same(base, str(home))), base)
    if isinstance(model, str) and not _is_same(base, str(embedded_models().get(model, model))):
        raise ConfigError(
            f"{setting}: the adapter in {folder} is for {base}, and the policy's model is {model}; expected the same. "
            "Fix the model, or, where it is the same under another name, base_model_name_or_path in "
            f"{folder / CONFIG_FILE}."
        )
    return model


def _is_same(base: str, model: str) -> bool:
    """Return True if two names are of one model: the same folder, or names that end alike, of a hub and a local
    copy."""
    if Path(base).expanduser().resolve() == Path(model).expanduser().resolve():
        return True
    return base.rstrip("/").rpartition("/")[2].lower() == model.rstrip("/").rpartition("/")[2].lower()


def _lora_settings(key: str, folder: Path, described: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy's lora with the folder's values; settings beside the path have to be equal to these."""
    rank, alpha = described["r"], described["lora_alpha"]
    if described.get("use_rslora"):  # scaled by alpha / sqrt(rank), and here by alpha / rank
        alpha *= math.sqrt(rank)
    lora = {"rank": rank, "alpha": alpha, "targets": sorted(described["target_modules"])}
    for name, value in lora.items():
        given = written.get(name, value)
        if given != "all-linear" and (sorted(given) if isinstance(given, list) else given) != value:
            raise ConfigError(
                f"{key}.lora.{name}: got {given!r} beside path, and the adapter in {folder} has {value}; expected the "
                "same. Remove it."
            )
    return {**written, "path": str(folder.absolute()), **lora}
