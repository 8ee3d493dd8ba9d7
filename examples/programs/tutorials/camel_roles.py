"""CAMEL: a user and an assistant play roles and answer each other."""

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.societies import RolePlaying
from camel.types import ModelPlatformType, ModelType


def main(task):
    model = ModelFactory.create(model_platform=ModelPlatformType.OPENAI, model_type=ModelType.GPT_4O_MINI)
    session = RolePlaying(
        assistant_role_name="Mathematician",
        user_role_name="Teacher",
        assistant_agent_kwargs={"model": model},
        user_agent_kwargs={"model": model},
        task_prompt=task["question"],
        with_task_specify=False,
    )
    message, said = session.init_chat(), ""
    for _ in range(2):
        assistant, user = session.step(message)
        if assistant.terminated or user.terminated:
            break
        said, message = assistant.msg.content, assistant.msg
    critic = ChatAgent("You are a critic.", model=model)
    return critic.step(f"Sum up: {said}").msgs[0].content
