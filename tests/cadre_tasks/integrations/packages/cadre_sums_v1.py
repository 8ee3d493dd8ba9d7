"""A taskset of verifiers v1, as an installed package has it: one turn, with tools if its config says so."""

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class Calculator(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


class SumTaskConfig(vf.TaskConfig):
    tools: bool = False


class SumTask(vf.Task[SumData, vf.State, SumTaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, task: SumData, trace: vf.Trace) -> float:
        return float(trace.last_reply.endswith(task.answer))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))

    @vf.metric
    async def tokens(self, trace: vf.Trace) -> float:
        return float(trace.num_output_tokens)

    @vf.metric
    async def completed(self, trace: vf.Trace) -> float:
        return float(trace.stop_condition == "agent_completed")

    @classmethod
    def toolsets(cls, config: SumTaskConfig) -> list:
        return [Calculator(vf.ToolsetConfig())] if config.tools else []


class SumsConfig(vf.TasksetConfig):
    task: SumTaskConfig = SumTaskConfig()
    count: int = 20


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for number in range(self.config.count):
            data = SumData(prompt=f"Add {number % 5} and 1.", system_prompt="Be brief.", answer=str(number % 5 + 1))
            yield SumTask(data, self.config.task)


__all__ = ["Sums"]
