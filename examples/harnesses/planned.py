"""A planner before mini-swe-agent: it reads the package once, and the coder is told what it answers."""

import litellm
import mini_swe_agent


def main(task):
    return mini_swe_agent.main(task, plan)


def plan(folder):
    package = "".join(path.read_text() for path in sorted(folder.glob("*/*.py")))
    question = [{"role": "user", "content": f"Which edit mends this package?\n{package}"}]
    answer = litellm.completion(model="openai/planner", messages=question)
    return f"Plan: {answer.choices[0].message.content}"
