"""Every command on the pages can be given as printed: its options, recipes, settings and files are known.

Commands of `cadre` are parsed by the command line itself, and settings are validated with their recipe, as before a
model loads. Programs of bench/ and lab/ are parsed by the options that their source declares. Nothing is run.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.exceptions import TyperException

from cadre.cli.app import app
from cadre.config.experiment import load
from cadre.config.recipes import recipes
from cadre.config.resolve import resolve
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, DataError
from cadre.settings.yaml_file import typed_keys
from tests.cadre.cli.calling import get_command
from tests.docs.blocks import COMMAND_PAGES, ROOT, Command, blocks, commands_of

MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# A word in capitals stands for something of the reader's. A folder has to be explained; these are what `cadre list`, an
# earlier command or the reader's own choice give.
# Of a script whose options stand in another file of its folder.
SHARED_PARSER = r"^from [\w.]+\.(\w+) import (?:[^\n(]*|\([^)]*)\b(?:training|make)_parser\b"
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]{2,}\b|\bfile\.py:Name\b")
PLAIN = {"COMMAND", "ENV", "MODEL", "NAME", "OUT", "RECIPE", "RUN", "STEP", "file.py:Name"}
FILE = re.compile(r"(?<!/)\b[\w./-]+\.(?:py|yaml|jsonl|json|html|md|txt|parquet)\b")
# What a script or a target needs beside the repository, and a word that the page has to have about it.
NEEDS = {
    "-m lab.asynchrony": "minutes|hours",
    "-m lab.audits": "minutes|hours",
    "-m lab.data": "folder",
    "-m lab.discovery": "minutes",
    "bench/families.py": "hours",
    "-m lab.fuzz": "CADRE_DATA",
    "-m lab.gpu": "GPU",
    "bench/house.py": "minutes|hours",
    "bench/kills.py": "hours",
    "-m lab.leduc_base": "minutes",
    "-m lab.melodies learn": "make_audio",
    "-m lab.openspiel": "openspiel",
    "-m lab.presets": "hours",
    "bench/repeat.py": "minutes",
    "bench/sandbox.py": "CADRE_DATA",
    "-m lab.search_trainings": "minutes",
    "-m lab.tinker_recipes": "environment",
    "-m lab.vllm_faults": "make vllm",
    "-m lab.worlds": "hours",
    "make bench": "minutes|hours",
    "make bench-vllm": "folder of",
    "make parity": "index|installs",
    "make results": "minutes|hours",
    "make test-slow": "hour",
    "make test-view": "Chromium",
    "make test-vllm": "environment",
    "make vllm": "environment",
    "make worth": "minutes|hours",
    "-m lab.media picture": "make_vision",
    "-m lab.media sound": "make_audio",
}
# Recipes of runs whose folder does not begin with the name of one.
RUNS = {"maths": "maths-qwen3-1.7b"}


def some_commands() -> list[Any]:
    return [
        pytest.param(command, id=f"{command.page}: {' '.join(command.words)[:70]}")
        for page in COMMAND_PAGES
        if page.name != "LOG.md"
        for command in dict.fromkeys(commands_of(page))
    ]


COMMANDS = some_commands()


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    check(command)


def check(command: Command) -> None:
    program, *words = command.words
    if program == "cadre":
        check_cadre(words, command)
    elif program == "make":
        check_make(words)
    elif program == "python":
        check_script(words)
    elif program == "pip":
        check_extras(words)
    elif program == "pytest":
        assert all((ROOT / word).exists() for word in words if word.startswith("tests")), words
    else:
        pytest.fail(f"nothing checks {program}")


def test_no_shell_replaces_a_word_of_a_command() -> None:
    """zsh ends with an error where an unquoted pattern fits no file."""
    texts = [item.values[0].text for item in COMMANDS]
    assert [text for text in texts if re.search(r"[][*?{}~]", re.sub(r"'[^']*'|\"[^\"]*\"", "", text))] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_names_what_a_command_needs(command: Command) -> None:
    """Files exist or are named beside the command, and so are placeholders; what takes long or a GPU is said."""
    page = text_of(command.page)
    rest_of_page = page.replace(command.text, "")
    for initial, word in zip(command.words, command.words[1:], strict=False):
        for name in set(PLACEHOLDER.findall(word)) - PLAIN:
            assert re.search(rf"\b{name}\b|folder", rest_of_page), f"{name} is explained nowhere on the page"
        for file in () if initial in ("--out", "--export", "--index-url") else FILE.findall(word):
            of_example = initial == "--on" and "An example is a line of JSON" in page
            assert (ROOT / file).exists() or page.count(file) > 1 or of_example, f"{file} is named nowhere"
    for start, needed in NEEDS.items():
        if re.match(rf"(python )?{start}( |$)", " ".join(command.words)):
            assert re.search(needed, rest_of_page), f"expected a sentence with {needed} on the page"


def check_cadre(words: list[str], command: Command) -> None:
    """Raise unless the command line takes the words, and the settings among them fit their recipe or environment."""
    group: Any = get_command(app)
    name, *rest = words or ["list"]
    if name == "COMMAND":
        return
    if name == "bench":
        check_script(["bench/speed.py", *(word for word in rest if word != "--help")])
        return
    options = {option for item in (group.commands.get(name) or group).params for option in item.opts}
    if name.startswith("-") or rest == ["--help"] or (command.inline and not positional(rest)):
        # A mention, such as `cadre compare --max-tokens`.
        assert name in group.commands or name in options, name
        assert {word for word in rest if word.startswith("-")} <= options | {"--help"}, rest
        return
    above = group.make_context("cadre", [word.replace("STEP", "1") for word in words])
    _, resolve_command, rest = group.resolve_command(above, [*above._protected_args, *above.args])
    arguments = resolve_command.make_context(name, list(rest), parent=above).params
    if name == "check" and (arguments["labels"] or arguments["target"].endswith(".yaml")):
        check_settings(arguments["target"], arguments["settings"] or [])
    elif name == "check" and arguments["target"] != "sandbox" and not PLACEHOLDER.search(arguments["target"]):
        check_environment(arguments["target"], arguments["settings"] or [])
    settings = [pair for pair in arguments.get("overrides") or [] if "=" in pair]
    settings += [first_value(over) for over in arguments.get("over") or []]
    target = arguments.get("recipe") or arguments.get("target") or arguments.get("folder") or ""
    if name in ("train", "eval", "audit", "fork", "sweep", "warm-start", "preference-pairs") and (target or settings):
        check_settings(str(target), settings)


def positional(words: list[str]) -> bool:
    return any(not word.startswith("-") for word in words[:1])


def first_value(over: str) -> str:
    """Return the first of the settings that `--over` names."""
    key, _, values = over.partition("=")
    value = yaml.safe_load(values)[0]
    return f"{key}={value}"


def check_environment(target: str, pairs: list[str]) -> None:
    if target.endswith(".py") or ".py:" in target:
        return  # a file of the reader's, or of examples/, which test_cli_examples.py runs
    settings = {key: yaml.safe_load(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    if target != "program":  # whose files are the reader's
        assert EnvSpec(target, settings).roles


def check_settings(target: str, settings: list[str]) -> None:
    """Validate the settings with the recipe of a run, a placeholder or a recipe by name, as before a model loads."""
    name, run = target or "plan-path", Path(target).name
    if env := next((setting.removeprefix("env=") for setting in settings if setting.startswith("env=")), ""):
        name = next(recipe for recipe in sorted(recipes(), key=len) if recipe.startswith(env))
    elif (ROOT / target).is_file():
        name = target
    elif target.endswith(".yaml") or PLACEHOLDER.search(target):  # the reader's own
        name = "plan-path"
    elif target.startswith("runs/"):
        name = next(
            (recipe for recipe in sorted(recipes(), key=len) if run.startswith(recipe)), RUNS.get(run, "plan-path")
        )
    # What the reader has to have is left out: folders, and policies on other models.
    settings = [
        setting for setting in settings if not re.match(r"env=|team\.|key=|.*reward_model|.*=[A-Z.]{3,}", setting)
    ]
    try:
        config = load(name, settings)
        if not any(
            setting.startswith("algorithm=") for setting in settings
        ):  # of some, validation plays in the sandbox
            resolve(config, typed=typed_keys(settings))
    except (ConfigError, DataError) as error:
        if not re.search("pip install|settings.source|GPU|Ray", str(error)):
            raise


def check_make(words: list[str]) -> None:
    for word in words:
        name, _, value = word.partition("=")
        pattern = rf"^{name} \??=|\$\({name}\)" if value else rf"^{name}:"
        assert re.search(pattern, MAKEFILE, re.MULTILINE), f"the Makefile has no {name}"


def check_script(words: list[str]) -> None:
    """Parse the words by the options of a script's source; what an option or a positional may be is only looked up."""
    name, *rest = words[1:] if words[0] == "-m" else words
    if name == "venv":
        return
    path = ROOT / (name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
    if name == "bench.parity":
        path = ROOT / "bench" / "parity" / "__main__.py"
    source = path.read_text(encoding="utf-8")
    if shared := re.search(SHARED_PARSER, source, re.MULTILINE):
        source += (path.parent / f"{shared[1]}.py").read_text(encoding="utf-8")
    parser = declared_parser(source)
    _, unknown = parser.parse_known_args([word for word in rest if word != "--help"])
    assert not [item for item in unknown if item.startswith("-")], f"{path.name} has no option {unknown}"
    for word in unknown:
        is_known = word in recipes() or re.search(rf"\b{word}\b", source)
        assert is_known or PLACEHOLDER.search(word) or "/" in word or "." in word, word


def declared_parser(source: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that the source adds to one; choices and types are left out."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [ast.literal_eval(name) for name in node.args]
            expected = [pair for pair in node.keywords if pair.arg in ("nargs", "action", "required", "dest")]
            options = {str(pair.arg): ast.literal_eval(pair.value) for pair in expected}
            # Whatever is left over after the options is compared with the source.
            if names[0].startswith("-") or "nargs" not in options:
                parser.add_argument(*names, **options)
    return parser


def check_extras(words: list[str]) -> None:
    """Extras exist, and no command takes the package from an index, which has none."""
    text = " ".join(words)
    assert "cadre-rl" not in text, "Cadre is on no package index: pip install -e '.[extra]' in the clone"
    for extra in re.findall(r"\[([\w,-]+)\]", text):
        assert set(extra.split(",")) <= set(EXTRAS), extra
    for file in re.findall(r"-r (\S+)", text):
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("block", blocks("py"), ids=str)
def test_sketches_compile_and_import_what_exists(block: Any) -> None:
    """But for modules of the sampler that is sketched."""
    for node in ast.walk(ast.parse(block.text)):
        module = node.module if isinstance(node, ast.ImportFrom) and node.module else ""
        if module.startswith("cadre") and not module.startswith("cadre.engines.sglang"):
            path = ROOT / module.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").is_file(), module


UNKNOWN = (
    "cadre train plan-paht",
    "cadre train real/plan-path",
    "cadre train plan-path-qwen3-1.8b-L1",
    "cadre train plan-path --fast",
    "cadre train plan-path algorithm.kk=4",
    "cadre check plan-path turns=none",
    "make rsults",
    "python bench/spede.py",
    "python -m lab.worlds --world sql",
    "python -m lab.worlds refrences",
    "pip install -e '.[opnspiel]'",
    "pip install 'cadre-rl[view]'",
)


@pytest.mark.parametrize("text", UNKNOWN)
def test_unknown_recipes_options_settings_and_files_are_found(text: str) -> None:
    with pytest.raises((AssertionError, ConfigError, TyperException, FileNotFoundError)):
        check(Command.parse("README.md", text))


@pytest.mark.parametrize("text", ["cadre warm-start search --on unnamed.jsonl --run runs/x", "make test-view"])
def test_files_and_needs_that_a_page_does_not_name_are_found(text: str) -> None:
    with pytest.raises(AssertionError):
        test_a_page_names_what_a_command_needs(Command.parse("README.md", text))


def test_there_are_commands_of_every_kind() -> None:
    counted = {
        program: sum(item.values[0].words[0] == program for item in COMMANDS)
        for program in ("cadre", "make", "python", "pip")
    }
    assert counted["cadre"] > 100
    assert min(counted.values()) > 10, counted
