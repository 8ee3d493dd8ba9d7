"""Any configuration is taken or refused in one paragraph, before a model is loaded."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadre.config.experiment import load, parse
from cadre.config.recipes import read_recipe, recipes
from cadre.config.resolve import resolve
from tests.fuzz.hostile_values import VALUES, broken, mutated, refused_well

# A recipe a kind of team, of those that need no data.
WHOLE = {
    name: read_recipe(name)
    for name in ("plan-path", "plan-path-lora", "plan-path-mappo", "plan-path-roles", "sokoban-single-agent")
}
SECTIONS = (
    "algorithm credit evaluate episodes learner loss sampling sandbox settings team.policies.* train vllm".split()
)
KEYS = "critic dtype k lora model name rate seed select steps tasks temperature turns x".split()


@pytest.fixture(autouse=True, scope="module")
def _no_hub() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@given(data=st.data(), name=st.sampled_from(sorted(WHOLE)))
def test_any_change_to_a_recipe(data: st.DataObject, name: str) -> None:
    raw = data.draw(mutated(copy.deepcopy(WHOLE[name])))
    assert refused_well(lambda: resolve(parse(raw)))


@given(st.dictionaries(st.sampled_from(["env", "team", "algorithm", "settings", "train", "x"]), VALUES, max_size=5))
def test_any_sections(raw: dict[str, Any]) -> None:
    assert refused_well(lambda: resolve(parse(raw)))


@given(data=st.data(), name=st.sampled_from(sorted(WHOLE)))
def test_any_file(data: st.DataObject, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    file.write_bytes(data.draw(broken(recipes()[name].read_bytes())))
    assert refused_well(lambda: resolve(load(str(file))))


@given(section=st.sampled_from(SECTIONS), key=st.sampled_from(KEYS), value=st.text(max_size=30))
def test_any_override(section: str, key: str, value: str) -> None:
    assert refused_well(lambda: resolve(load("plan-path", [f"{section}.{key}={value}"])))
