"""A planner before mini-swe-agent: it reads the package once, and the coder is told what it answers."""

from mini_swe_agent import litellm, solve


def main(task):
    return solve(task, lambda folder: f"{task['issue']}\nPlan: {plan(folder)}")


def plan(folder):
    package = "".join(path.read_text() for path in sorted(folder.glob("*/*.py")))
    question = [{"role": "user", "content": f"Which edit mends this package?\n{package}"}]
    answer = litellm.completion(model="openai/planner", messages=question)
    return answer.choices[0].message.content
