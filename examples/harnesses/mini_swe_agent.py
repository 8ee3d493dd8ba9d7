"""mini-swe-agent 2.4 as it is on PyPI: `mini`, started in this process, as its import takes seconds."""

import os

from repository import collect, prepare

# Its own settings, which it reads when it is imported: a folder for them, and that nobody is to be asked for any.
os.environ |= {
    "MSWEA_GLOBAL_CONFIG_DIR": f"{os.environ['XDG_CACHE_HOME']}/mini-swe-agent",
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it tries to download prices
}
import litellm
import minisweagent.agents.interactive
import minisweagent.environments.local
import minisweagent.models.litellm_model  # noqa: F401 - these three would be imported in every instance
from minisweagent.run.mini import main as mini

# What a first call loads is loaded here, once; nothing is sent.
litellm.completion(model="openai/coder", messages=[{"role": "user", "content": ""}], mock_response="-")
# A file of the user's settings, merged over its own.
SETTINGS = [path] if (path := os.environ.get("MSWEA_MINI_CONFIG_PATH")) else []
MODEL = "openai/coder"  # a provider of LiteLLM, whose address OPENAI_BASE_URL is; the model's name is the role


def main(task):
    return solve(task, lambda folder: task["issue"])


def solve(task, describe):
    """Run `mini` on what `describe(folder)` says, given the folder of the repository."""
    folder, variables = prepare(task)
    given = {name: value for name, value in os.environ.items() if name.startswith(("OPENAI_", "MSWEA_"))}
    os.environ.clear()
    os.environ.update(variables | given)
    os.chdir(folder)
    mini(
        model_name=MODEL,
        task=describe(folder),
        yolo=True,
        exit_immediately=True,
        cost_limit=0.0,
        model_class=None,
        agent_class=None,
        environment_class=None,
        output=None,
        config_spec=["mini.yaml", "model.cost_tracking=ignore_errors", "agent.step_limit=30", *SETTINGS],
    )
    return collect(folder)
