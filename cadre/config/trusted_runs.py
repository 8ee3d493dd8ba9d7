"""Decide what a run folder may name without --trust: bundled tasks, models inside of it, and plain settings.

A run folder may be a stranger's, and so may be each file, module, command and address that its configuration names.
Harmless text is listed here and in the classes of environments (`Env.plain_text`); all other text needs --trust, unless
the user names it beside the run, or began a run with it on this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cadre.config.recipes import MIXTURE, apply_adapter_settings, expand_mixture
from cadre.envs.spec import declared_settings, env_class
from cadre.errors import ConfigError, one_line
from cadre.plugins import embedded_models, environments
from cadre.settings.trust import (
    UNTRUSTED_FOLDERS,
    CodeReference,
    find_code_file,
    find_module_file,
    is_inside,
    untrusted_code_message,
)

Key = tuple[str, ...]
# A name of a table, a role, a policy or a device, such as `cuda:1`: no path, and no function of a file.
WORD = re.compile(r"[\w.-]*(:\d+)?")
# Settings with any text. That of a policy, such as a language model's, begins with the policy's own key.
FREE_TEXT = {("sampling", "stop"), ("trackers", "project")}
FREE_TEXT_OF_POLICIES = {("sampling", "stop"), ("lora", "targets"), ("key_variable",)}


def check_trusted(
    folder: Path, raw: Mapping[str, Any], trust: bool, user_settings: Mapping[str, Any] | None = None
) -> None:
    """Raise ConfigError for what the configuration `raw` of a run folder names and the user does not know.

    `user_settings` come from the user beside the run: a recipe they name, and changes. Unless the user does `trust` the
    folder, everything that `find_access` yields has to be in these or recorded by `record_begun_run`, and no code may
    lie inside of the folder. The Python files that will be imported are named on stderr, before the first of them runs.
    """
    accesses = list(find_access(raw, folder))
    if trust:
        UNTRUSTED_FOLDERS.discard(folder.absolute())
    else:
        named = set(find_access(user_settings or {}, folder))
        untrusted = [access for access in accesses if not _is_known(access, folder, named)]
        if not untrusted:  # an adapter names its base, and is read only where its folder may be
            bases = find_access(apply_adapter_settings(raw), folder)
            untrusted = [access for access in bases if not _is_known(access, folder, named)]
        if untrusted:
            described = [f"{access.description[:200]} ({access.setting})" for access in untrusted]
            raise ConfigError(untrusted_code_message(described, folder))
        UNTRUSTED_FOLDERS.add(folder.absolute())
    for code in {access.file: access for access in accesses if access.is_code}.values():
        sys.stderr.write(f"imports {one_line(code.description)} ({one_line(code.setting)})\n")


def record_begun_run(built: Path, folder: Path, raw: Mapping[str, Any]) -> None:
    """Record, outside of all runs, that the user begins a run with what this configuration names on this machine. The
    run lies at `built` while it is made and at `folder` afterwards. If the record cannot be written, the user is asked
    for --trust later."""
    for access in find_access(raw, folder):
        with suppress(OSError):
            path = _begun_record(built, folder, access)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def _is_known(access: CodeReference, folder: Path, named: set[CodeReference]) -> bool:
    """Return True if the user named this beside the run, or began a run with it. No code inside the folder is known."""
    words = access.words if access.is_code or access.file is None else ()  # data of the folder may be named
    if any("\0" not in word and os.path.exists(word) and is_inside(Path(word), folder) for word in words):
        return False
    return access in named or _begun_record(folder, folder, access).is_file()


def _begun_record(built: Path, folder: Path, access: CodeReference) -> Path:
    """Return the path of the empty file that exists if a run was begun on this machine with this setting and value.

    Its name is a hash. That of a command or an address includes the folder's path and inode, so that the record does
    not vouch for a folder that is unpacked or put in the run's place. Files outside of runs, and words for the user's
    own environment, are vouched for in copies of the run, too.
    """
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    is_word = access.setting.startswith(("settings.", "evaluate.settings.")) and WORD.fullmatch(access.description)
    identity: list[Any] = [access.setting, access.description if access.file is None else os.path.realpath(access.file)]
    if access.file is None and not is_word:
        identity += [os.path.realpath(folder), os.stat(built).st_ino]
    return Path(state, "cadre", "begun", hashlib.sha256(json.dumps(identity).encode(errors="replace")).hexdigest())


# ---- Find what a configuration names


def find_access(raw: Mapping[str, Any], folder: Path) -> Iterator[CodeReference]:
    """Yield what a configuration of the run in `folder` names that is not known to be harmless. `raw` is any YAML:
    nothing about its types is taken for granted."""
    raw = expand_mixture(raw)
    for key, value in _leaves(raw, ()):
        policy = _policy_key(key)
        if key in (policy, ("team",)):
            key = (*key, "model")  # the short form of a policy
        setting, settings = ".".join(key), _section(raw, policy)
        if value and key == (*policy, "url"):
            variable = settings.get("key_variable", "OPENAI_API_KEY")
            yield CodeReference(setting, f"calls of {value} with the key in ${variable}")
        elif value and key == (*policy, "trust_remote_code"):
            model = settings.get("model")
            yield CodeReference(setting, f"the code that ships with {model!r}", (str(model),))
        elif key == ("trackers", "names"):
            trackers = [name for name in _texts(value) if name != "tensorboard"]
            yield from (CodeReference(setting, f"the tracker {name}") for name in trackers)
        elif key[-1] == "envs" and raw.get("env") == MIXTURE and isinstance(value, list):
            for entry in value:
                member = entry if isinstance(entry, Mapping) else {"name": entry}
                yield from find_access({"env": member.get("name"), "settings": member.get("settings")}, folder)
        elif key == ("curriculum", "levels") and isinstance(value, list):
            for level in value:
                yield from find_access({"env": raw.get("env"), "settings": level}, folder)
        elif key[:1] == ("settings",) or key[:2] == ("evaluate", "settings"):
            name = key[1 + (key[0] == "evaluate") :]
            if asking := _environment_texts(raw.get("env"), name, value):
                yield from _references(setting, value, asking)
        elif asking := [text for text in _texts(value) if not _is_plain(key, policy, text, raw, folder)]:
            yield from _references(setting, value, asking)


def _leaves(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    """Yield every value below mappings with its key; a list is one value."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, str(name)))
    else:
        yield key, value


def _texts(value: Any) -> list[str]:
    """Return the texts in a value that are not empty."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for inner in value for text in _texts(inner)]
    return [value] if isinstance(value, str) and value else []


def _policy_key(key: Key) -> Key:
    """Return the key of the policy that a setting is part of, () for other settings."""
    if key[:2] == ("team", "policies") or key[:3] == ("algorithm", "critic", "policy"):
        return key[:3]
    return key[:2] if key[:2] == ("teacher", "model") else ()


def _section(raw: Any, key: Key) -> Mapping[str, Any]:
    for name in key:
        raw = raw.get(name) if isinstance(raw, Mapping) else None
    return raw if isinstance(raw, Mapping) else {}


def _is_plain(key: Key, policy: Key, text: str, raw: Mapping[str, Any], folder: Path) -> bool:
    """Return True for a text that is harmless in its setting, which is none of an environment's own."""
    field = key[len(policy) :]
    if key == ("env",):
        return text in environments()
    if key == ("cluster", "address"):
        return text == "auto"
    if key == ("sandbox", "level"):
        return text != "process"
    if policy and field == ("model",) and _section(raw, policy).get("url"):
        return True  # a name of the endpoint's
    if key in (("team", "model"), ("algorithm", "reward_model")) or (
        policy and field in (("model",), ("lora", "path"), ("lora", "adapter"))
    ):
        path = Path(os.path.realpath(os.path.expanduser(text))) if "\0" not in text else Path()
        if text.startswith(("/", ".", "~")) and not path.exists():
            return True  # nothing is there: `find_model` says so
        homes = [folder, *embedded_models().values()]
        return text in embedded_models() or any(path.is_relative_to(os.path.realpath(home)) for home in homes)
    if key[:2] == ("team", "prompts") or key in FREE_TEXT or (policy and field in FREE_TEXT_OF_POLICIES):
        return True
    return WORD.fullmatch(text) is not None


def _environment_texts(env: Any, name: Key, value: Any) -> list[str]:
    """Return the texts of a setting of an environment that are not known to be harmless. These are names of a fixed
    list (`Literal`) and what the environment's class lists in `plain_text`. A mapping that it does not list is not
    harmless even if it is one of numbers."""
    env = env if isinstance(env, str) else None
    plain, declared = _plain_settings(env) if env in environments() else ({}, {})
    if name and name[0] in plain:
        return [text for text in _texts(value) if not re.fullmatch(plain[name[0]], text, re.DOTALL)]
    if len(name) > 1 and value is not None:
        return _texts(value) or [str(value)]
    return [text for text in _texts(value) if text not in declared.get("".join(name), ())]


@cache
def _plain_settings(env: str) -> tuple[Mapping[str, str], Mapping[str, frozenset[Any]]]:
    """Return the patterns of a bundled environment's free text, and the names that each of its settings lists."""
    declared = env_class(env)
    names = {name: frozenset(_listed(it.annotation)) for name, it in declared_settings(declared).items()}
    return declared.plain_text, names


def _listed(annotation: Any) -> Iterator[Any]:
    """Yield the values that a type lists (`Literal`)."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for inner in get_args(annotation):
            yield from _listed(inner)


def _references(setting: str, value: Any, texts: Sequence[str]) -> Iterator[CodeReference]:
    """Yield the Python files that the texts of a setting name, and what they name beside these; a list as a whole."""
    files = {text: find_code_file(text) or (find_module_file(text) if setting == "env" else None) for text in texts}
    for file in files.values():
        if file is not None:
            yield CodeReference(setting, str(file), (str(file),), file, is_code=True)
    if isinstance(value, list | tuple):
        yield CodeReference(setting, shlex.join(texts), tuple(texts))
        return
    for text in (text for text, file in files.items() if file is None):
        path = os.path.expanduser(text)
        is_path = os.sep in path and "\0" not in path and os.path.exists(path)
        yield CodeReference(setting, text, (text, path, *text.split()), Path(path) if is_path else None)
