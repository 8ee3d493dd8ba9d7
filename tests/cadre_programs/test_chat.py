"""`cadre chat` with a team in memory: roles, their conversations, and what is no text."""

from __future__ import annotations

from types import SimpleNamespace

from cadre.errors import PromptError
from cadre.types import Message, Sample
from cadre_programs.chat import Conversations, roles_with_tools
from cadre_programs.roles import make_role_rules
from tests.cadre.cli.calling import call

RULES = make_role_rules(["tool", "planner"], {"gpt-*": "planner"})


class EchoTeam:
    """Answers with the number of messages and the last one; keeps what it was asked."""

    assignment = {"tool": "a", "planner": "b"}

    def __init__(self) -> None:
        self.requests: list[tuple[str, tuple[Message, ...], object]] = []

    async def sample(self, observation, count, key, previous):
        if observation.messages[-1].content == "too long":
            raise PromptError("too long")
        self.requests.append((observation.role, observation.messages, previous))
        text = f"{len(observation.messages)} {observation.messages[-1].content}"
        return [Sample(observation.role, "a", text, (1,), (2, 3), (0.0, 0.0), "stop" if count else "length", 0)]


def test_each_role_has_its_own_conversation_below_its_prompt():
    team = EchoTeam()
    talk = Conversations(team, RULES, "tool", prompts={"planner": "Plan."})
    assert [talk.answer("x"), talk.answer("y")] == ["1 x", "3 y"]
    talk.select_role("planner")
    assert talk.answer("z") == "2 z"  # its prompt, and z
    talk.select_role("gpt-4o")  # a model of the program, whose role is the planner
    assert talk.role == "planner"
    talk.select_role("tool")
    assert talk.answer("w") == "5 w"
    _, messages, previous = team.requests[-1]
    assert [message.role for message in messages] == ["user", "assistant"] * 2 + ["user"]
    assert previous.sample.text == "3 y"  # whose token ids the prompt goes on from
    talk.restart()
    assert talk.answer("v") == "1 v"
    assert team.requests[-1][2] is None


def test_a_text_that_is_too_long_leaves_the_conversation_as_it_was():
    talk = Conversations(EchoTeam(), RULES, "tool")
    talk.answer("x")
    initial = dict(talk.messages), dict(talk.previous)
    try:
        talk.answer("too long")
    except PromptError:
        assert (talk.messages, talk.previous) == initial
    assert talk.answer("y") == "3 y"


def test_lines_of_a_pipe(monkeypatch, tmp_path):
    lines = iter(["hello\n", "\n", "/role toll\n", "/role tool\n", "hi\n", "/what\n", "/end\n", "never\n"])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False, readline=lambda: next(lines)))
    result = call("chat", "plan-path", "--role", "planner")
    assert result.code == 0
    output = result.out.splitlines()
    assert output[0].startswith("Roles: tool, planner. /role NAME")
    assert output[1].startswith("planner: ")
    assert "got role 'toll'; expected one of tool, planner. Did you mean tool?" in output[2]
    assert output[3].startswith("tool: ")
    assert output[4].startswith("/role NAME")
    assert len(output) == 5
    assert call("chat", "plan-path", "--role", "nobody").code == 2


def test_a_role_that_has_tools_in_its_environment_is_told_that_chat_offers_none():
    assert roles_with_tools({"clerk": [len], "judge": []}, ["clerk", "judge"]) == "clerk"
    assert roles_with_tools([len], ["clerk", "judge"]) == "clerk, judge"
    assert roles_with_tools((), ["clerk"]) == ""
