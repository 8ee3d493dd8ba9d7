"""A model's folder may hold anything: templates, configurations, adapters and tokenizers are taken, or refused in one
paragraph."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from cadre.engines.text.template import Template
from cadre.engines.torch import TorchEngine
from cadre.engines.torch.storage import load_adapter
from cadre.errors import EngineError
from cadre.types import Message
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import CHATML, byte_tokenizer
from tests.fuzz.hostile_values import broken, mutated, refused_well

HISTORY = (Message("system", "Be brief."), Message("user", "Go."), Message("assistant", "1"), Message("user", "On."))
# What templates are written in, so that most of what is drawn can be parsed.
PIECES = (
    "{% for message in messages %}",
    "{% endfor %}",
    "{% if message.role == 'user' %}",
    "{% endif %}",
    "{{ message.content }}",
    "{{ messages[9].content }}",
    "{{ messages[0].content + 1 }}",
    "{{ 1 / 0 }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ raise_exception('no') }}",
    "{{ none | tojson }}",
    "{{ messages | map(attribute='x') | list | first }}",
    "{{ strftime_now('%Y') }}",
    "{{ cycler.__init__.__globals__ }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ '9' * 100 | int }}",
    "{{ int('x') }}",
    "{{ message }}",
    "\ud800",
    "x",
)


@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
    | broken(CHATML.encode()).map(lambda b: b.decode("latin1"))
)
def test_any_chat_template(text: str) -> None:
    assert refused_well(lambda: Template(byte_tokenizer(text)).prompt_ids(HISTORY, None, (257,)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """A copy of a folder, a new one each time."""
    root = tmp_path_factory.mktemp("work")
    return lambda folder: copytree(folder, root / str(len(list(root.iterdir()))))


def opened(folder: Path) -> None:
    TorchEngine(folder, {"p": tiny.policy(folder)}, 0).close()


FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(FILES))
def test_any_description_of_a_model(data: st.DataObject, name: str, model: Path, work: Callable[[Path], Path]) -> None:
    folder = work(model)
    full = json.loads((folder / name).read_text())
    if name == "tokenizer.json":  # its vocabulary is long, and a place in it the likeliest
        full["model"]["vocab"] = dict(list(full["model"]["vocab"].items())[:4])
    (folder / name).write_text(json.dumps(data.draw(mutated(full))))
    assert refused_well(lambda: opened(folder))


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from((*FILES, "model.safetensors")))
def test_any_bytes_in_a_model(data: st.DataObject, name: str, model: Path, work: Callable[[Path], Path]) -> None:
    folder = work(model)
    full = (folder / name).read_bytes()
    (folder / name).write_bytes(data.draw(broken(full[:3000])) + full[3000:])
    assert refused_well(lambda: opened(folder))


def test_weights_that_are_not_there_are_refused_and_not_drawn(model: Path, work: Callable[[Path], Path]) -> None:
    """transformers draws them at random, and says so in a log."""
    folder = work(model)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(EngineError, match=r"not whole.* 9 are not there \(model\.layers\.2\."):
        opened(folder)


def test_another_shape_is_refused(model: Path, work: Callable[[Path], Path]) -> None:
    folder = work(model)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 32}))
    with pytest.raises(EngineError, match=r"do not fit its config\.json: model\.layers\.0\.mlp\.down_proj\.weight"):
        opened(folder)


@pytest.fixture(scope="module")
def adapter(model: Path) -> dict[str, torch.Tensor]:
    """The weights of a small adapter, by the names of its parameters."""
    engine = tiny.team(model, {"p": 2}).engine
    try:
        return {name: value.detach().clone() for name, value in engine.parameters("p").items()}
    finally:
        engine.close()


DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn)


@given(data=st.data())
def test_any_adapter(
    data: st.DataObject, adapter: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "adapter"
    folder.mkdir(exist_ok=True)
    weights = {f"base_model.model.{name}": value for name, value in adapter.items()}
    for name in data.draw(st.lists(st.sampled_from(sorted(weights)), max_size=3, unique=True)):
        shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
        stored = data.draw(st.sampled_from(["shape", "type", "name", "none"]))
        value = weights.pop(name)
        if stored == "shape":
            weights[name] = value.to(data.draw(st.sampled_from(DTYPES)))
        elif stored == "type":
            weights[name] = torch.zeros(shape)
        elif stored == "name":
            weights[data.draw(st.text(min_size=1, max_size=8).filter(lambda text: text.isascii()))] = value
    save_file(weights, folder / "adapter_model.safetensors")
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in adapter.items()}
    assert refused_well(lambda: load_adapter(parameters, folder))


@given(data=st.data())
def test_any_bytes_in_an_adapter(
    data: st.DataObject, adapter: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "adapter"
    folder.mkdir(exist_ok=True)
    save_file({f"base_model.model.{name}": value for name, value in adapter.items()}, folder / "whole.safetensors")
    full = (folder / "whole.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(data.draw(broken(full[:2000])) + full[2000:])
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in adapter.items()}
    assert refused_well(lambda: load_adapter(parameters, folder))
