"""A kept tree as text, against lines written by hand."""

from typing import Any

from cadre.cli.play import format_tree


def branch(choice: dict[str, int], team: float, carried: bool, **more: Any) -> dict[str, Any]:
    reward = {"team": team, "local": more.pop("local", {}), "parts": {}}
    ends = {"over": False, "success": False, "child": None}
    return {"choice": choice, "reward": reward, "carried": carried, **ends, **more}


def node(seen: dict[str, str], said: dict[str, list[str]], branches: list[dict[str, Any]]) -> dict[str, Any]:
    observations = {
        role: {"role": role, "messages": [{"role": "user", "content": text}]} for role, text in seen.items()
    }
    samples = {role: [{"text": text} for text in texts] for role, texts in said.items()}
    return {"turn": 0, "observations": observations, "samples": samples, "branches": branches}


LAST = node(
    {"left": "\n".join("abcdefgh"), "right": "what?"},
    {"left": ["a\nb", "x" * 90], "right": ["c", "d"]},
    [
        branch({"left": 0, "right": 0}, 0.0, False, over=True),
        branch({"left": 1, "right": 1}, 1.0, True, over=True, success=True, local={"left": -0.5, "right": 0.0}),
    ],
)
FIRST = node(
    {"lead": "Go."},
    {"lead": ["no", "yes"]},
    [branch({"lead": 0}, -1.0, False), branch({"lead": 1}, 0.25, True, child=1)],
)


def test_a_tree_of_two_decisions() -> None:
    printed = list(format_tree({"step": 4, "task": {"id": "train-7"}, "nodes": [FIRST, LAST]}))
    assert printed == [
        "step 5, task train-7; > marks what sampling went on from",
        "",
        "lead sees",
        "  | Go.",
        "  team -1.00  #0: no",
        "> team +0.25  #1: yes",
        "",
        "  after lead #1:",
        "",
        "  left sees",
        "    | c",
        "    | d",
        "    | e",
        "    | f",
        "    | g",
        "    | h",
        "",
        "  right sees",
        "    | what?",
        "    +0.00, over  left #0: a b",
        "                 right #0: c",
        "  > team +1.00, left -0.50, solved  left #1: " + "x" * 32 + "...",
        "                                    right #1: d",
    ]
