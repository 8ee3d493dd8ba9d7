"""Instructor: a planner that returns a typed plan, and solvers for its steps, retried if they do not validate."""

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

client = instructor.from_openai(OpenAI())


class Plan(BaseModel):
    steps: list[str] = Field(max_length=3)


class Result(BaseModel):
    value: int = Field(ge=0)


def main(task):
    plan = client.chat.completions.create(
        model="gpt-4o",
        response_model=Plan,
        messages=[
            {"role": "system", "content": "You plan at most three steps."},
            {"role": "user", "content": task["question"]},
        ],
    )
    result = client.chat.completions.create(
        model="gpt-4o-mini",
        response_model=Result,
        max_retries=2,
        messages=[{"role": "user", "content": f"{task['question']} Follow the plan: {plan.steps}"}],
    )
    return str(result.value)
