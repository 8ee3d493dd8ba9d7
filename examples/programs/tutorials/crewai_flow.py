"""CrewAI: a flow that routes to a crew of a researcher with a tool and a writer with a typed result."""

from crewai import Agent, Crew, Process, Task
from crewai.flow.flow import Flow, listen, start
from crewai.tools import tool
from pydantic import BaseModel


class Answer(BaseModel):
    answer: str


@tool("Calculator")
def calculate(expression: str) -> str:
    """Evaluates a sum such as 2 + 3."""
    return str(sum(int(part) for part in expression.split("+") if part.strip().isdigit()))


class AnswerFlow(Flow):
    @start()
    def prepare(self):
        researcher = Agent(
            role="Researcher",
            goal="Find the numbers",
            backstory="You work with care.",
            llm="gpt-4o-mini",
            tools=[calculate],
            max_iter=3,
        )
        writer = Agent(role="Writer", goal="Write the answer", backstory="You are brief.", llm="gpt-4o")
        research = Task(description="Work out: {question}", expected_output="The numbers", agent=researcher)
        write = Task(description="Answer: {question}", expected_output="JSON", agent=writer, output_pydantic=Answer)
        crew = Crew(agents=[researcher, writer], tasks=[research, write], process=Process.sequential)
        return crew.kickoff(inputs={"question": self.state["question"]})

    @listen(prepare)
    def finish(self, result):
        return result.pydantic.answer if result.pydantic else result.raw


def main(task):
    return AnswerFlow().kickoff(inputs={"question": task["question"]})
