"""Harbor's own agent, Terminus 2, in a tmux of this machine where Harbor would start a container."""

import asyncio
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import litellm  # noqa: F401 - else imported in every instance
from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext
from repository import collect, prepare

SCREEN_S = 2.0  # until the shell's first prompt is on the screen


class LocalMachine:
    """What Terminus uses of an environment of Harbor: a command, and whether a folder is there."""

    session_id, default_user = "local", None

    def __init__(self, folder, variables):
        self.folder, self.variables = folder, variables
        self.trial_paths = SimpleNamespace(agent_dir=folder.parent / "logs")
        self.trial_paths.agent_dir.mkdir()

    async def exec(self, command, user=None, **options):
        """Run a command in the repository. Harbor's folder for logs is one of this instance."""
        command = command.replace("/logs/agent", str(self.trial_paths.agent_dir))
        process = await asyncio.create_subprocess_exec(
            *["bash", "-c", command],
            cwd=self.folder,
            env=self.variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        return ExecResult(stdout=output.decode(), stderr=errors.decode(), return_code=process.returncode)

    async def is_dir(self, path, user=None):
        return Path(path).is_dir()


async def main(task):
    logging.disable(logging.CRITICAL)
    folder, variables = prepare(task)
    home = folder.parent / "home"
    (home / ".bash_profile").write_text(f"PS1='$ '\nexport PATH={variables['PATH']}\n")
    # Whoever has the key belongs to this instance, and ends with it.
    variables |= {"TMUX_TMPDIR": str(home), "OPENAI_API_KEY": os.environ["OPENAI_API_KEY"]}
    machine = LocalMachine(folder, variables)
    agent = Terminus2(
        logs_dir=machine.trial_paths.agent_dir,
        model_name="openai/coder",
        api_base=os.environ["OPENAI_BASE_URL"],
        max_turns=30,
        record_terminal_session=False,
        enable_summarize=False,
    )
    await agent.setup(machine)
    await asyncio.sleep(SCREEN_S)
    await agent.run(task["issue"], machine, AgentContext())
    await machine.exec("tmux kill-server")
    return collect(folder)
