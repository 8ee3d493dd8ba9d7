"""Langroid: a task of a planner with a tool, and a sub-task of a solver that it addresses."""

import langroid as lr
import langroid.language_models as lm
from langroid.agent.tools.orchestration import DoneTool


class AddTool(lr.ToolMessage):
    request: str = "add"
    purpose: str = "To add <a> and <b>."
    a: int
    b: int

    def handle(self) -> str:
        return str(self.a + self.b)


def agent(name, system_message):
    llm = lm.OpenAIGPTConfig(chat_model="gpt-4o-mini")
    config = lr.ChatAgentConfig(name=name, llm=llm, vecdb=None, system_message=system_message)
    config.use_tools, config.use_functions_api, config.use_tools_api = False, True, True
    return lr.ChatAgent(config)


def main(task):
    planner = agent("Planner", "You are a planner. Ask the Solver, then be done.")
    planner.enable_message([AddTool, DoneTool])
    solver = agent("Solver", "You are a solver. Answer with a number.")
    team = lr.Task(planner, interactive=False, allow_null_result=True)
    team.add_sub_task(lr.Task(solver, interactive=False, single_round=True))
    result = team.run(task["question"], turns=6)
    return result.content if result else ""
