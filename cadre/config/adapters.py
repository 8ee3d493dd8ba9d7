"""Policies that start from a LoRA adapter: a PEFT folder, such as `cadre export` writes for them.

The folder's settings (base, rank, alpha, modules) are read before any model loads and become the policy's own settings.
Its weights are read later, by `cadre.engines.torch`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadre.errors import ConfigError
from cadre.file_limits import open_untrusted, read_json
from cadre.plugins import embedded_models
from cadre.settings.team import PEFT_PREFIX
from cadre.settings.yaml_file import ONLY_POLICY

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
# The header of a file of tensors has names, shapes and offsets.
MAX_HEADER_BYTES = 100_000_000
# What makes an adapter something other than two matrices beside each of some linear layers.
UNSUPPORTED_OPTIONS = (
    *("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "layer_replication", "rank_pattern"),
    *("alpha_pattern", "fan_in_fan_out", "alora_invocation_tokens", "target_parameters", "use_qalora", "arrow_config"),
    *("use_bdlora", "kasa_config", "monteclora_config"),
)
# These change the base's weights when they begin, so that the adapter belongs to another base than it names.
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


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

    def refuse(got: str, expected: str, advice: str) -> ConfigError:
        return ConfigError(f"{setting}: {folder} {got}; expected {expected}. {advice}")

    lora = "a PEFT folder of a LoRA adapter, adapter_config.json and adapter_model.safetensors"
    if not (folder / CONFIG_FILE).is_file():
        raise refuse(f"holds no {CONFIG_FILE}" if folder.is_dir() else "is no folder", lora, "Fix the path.")
    try:
        described = read_json(folder / CONFIG_FILE)
    except (OSError, ValueError) as error:
        raise refuse(
            f"has an {CONFIG_FILE} that cannot be read ({error})", lora, "Take it from where it was made."
        ) from None
    if not isinstance(described, dict) or described.get("peft_type") != "LORA":
        kind = described.get("peft_type") if isinstance(described, dict) else described
        raise refuse(f"holds an adapter of type {kind!r}", "LORA", "Merge it into its base with PEFT, and train that.")
    unsupported = [name for name in UNSUPPORTED_OPTIONS if described.get(name)]
    unsupported += ["bias"] if described.get("bias", "none") != "none" else []
    init = described.get("init_lora_weights")
    unsupported += ["init_lora_weights"] if isinstance(init, str) and init.startswith(BASE_CHANGING_INITS) else []
    if unsupported:
        raise refuse(
            f"has {unsupported[0]}={described[unsupported[0]]!r} in its {CONFIG_FILE}",
            "a plain LoRA, two matrices beside linear layers",
            "Merge it into its base with PEFT (merge_and_unload), and name that model.",
        )
    rank, alpha = described.get("r"), described.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
        raise refuse(f"has r={rank!r} and lora_alpha={alpha!r}", "numbers above 0", f"Fix its {CONFIG_FILE}.")
    if not (folder / WEIGHTS_FILE).is_file():
        pickled = (
            ", but adapter_model.bin, which is pickled and is not read"
            if (folder / "adapter_model.bin").is_file()
            else ""
        )
        raise refuse(
            f"holds no {WEIGHTS_FILE}{pickled}", lora, "Save it with save_pretrained(safe_serialization=True)."
        )
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
        if base not in embedded_models() and base.startswith(("/", ".", "~")) and not Path(base).expanduser().is_dir():
            raise ConfigError(
                f"{setting}: the adapter in {folder} is for {base}, which is no folder here; expected its base. Write "
                f"model: BASE and lora: {{path: {folder}}}."
            )
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
    rank, alpha = described["r"], float(described["lora_alpha"])
    if described.get("use_rslora"):  # scaled by alpha / sqrt(rank), and here by alpha / rank
        alpha *= math.sqrt(rank)
    targets = _target_modules(key, folder, described)
    for name, has in (("rank", rank), ("alpha", alpha)):
        if name in written and written[name] != has:
            raise ConfigError(
                f"{key}.lora.{name}: got {written[name]!r} beside path, and the adapter in {folder} has {has}; "
                "expected the same. Remove it."
            )
    written_targets = written.get("targets", targets)
    if written_targets != "all-linear" and sorted(written_targets) != sorted(targets):
        raise ConfigError(
            f"{key}.lora.targets: got {written_targets!r} beside path, and the adapter in {folder} has "
            f"{', '.join(targets)}; expected the same. Remove it."
        )
    return {**written, "path": str(folder.absolute()), "rank": rank, "alpha": alpha, "targets": targets}


def _target_modules(key: str, folder: Path, described: Mapping[str, Any]) -> list[str]:
    """Return the suffixes of the names of adapted modules; the full names if suffixes would match other modules,
    too."""
    modules = _adapted_modules(key, folder)
    # A list of suffixes is what people write and read. Patterns, and lists with exceptions, are replaced by full names.
    listed = described.get("target_modules")
    chosen = any(described.get(name) for name in ("layers_to_transform", "exclude_modules"))
    if isinstance(listed, list) and not chosen and all(isinstance(name, str) for name in listed):
        ends = [name for name in sorted(listed) if any(f".{module}".endswith(f".{name}") for module in modules)]
        if all(any(f".{module}".endswith(f".{name}") for name in ends) for module in modules):
            return ends
    return modules


def _adapted_modules(key: str, folder: Path) -> list[str]:
    """Return the names of the modules that the file of weights has an adapter for."""
    try:
        with open_untrusted(folder / WEIGHTS_FILE) as file:
            # safetensors: eight bytes with the length of a JSON header, then the header with the names.
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise ValueError(f"a header of {length:,} bytes")
            names = [name for name in json.loads(file.read(length)) if name != "__metadata__"]
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{key}.lora.path: {folder / WEIGHTS_FILE} cannot be read ({error}); expected tensors as safetensors. "
            "Take it from where it was made."
        ) from None
    ends = (".lora_A.weight", ".lora_B.weight")
    odd = [name for name in names if not (name.startswith(PEFT_PREFIX) and name.endswith(ends))]
    if odd or not names:
        raise ConfigError(
            f"{key}.lora.path: {folder / WEIGHTS_FILE} holds {odd[0] if odd else 'nothing'}; expected the matrices "
            "A and B of linear layers alone. Merge it into its base with PEFT, and name that model."
        )
    return sorted({name.removeprefix(PEFT_PREFIX).removesuffix(ends[0]).removesuffix(ends[1]) for name in names})
