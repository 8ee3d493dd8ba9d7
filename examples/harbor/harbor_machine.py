"""Harbor's interface of an environment on `machine.py`, for where there is no docker. Harbor imports it:

    PYTHONPATH=examples/harbor harbor run -p TASKS -a oracle -e harbor_machine:MachineEnvironment

Each command has a machine of its own with the same folders. A process that a command leaves behind is ended, which it
would not be in a container.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path

import machine
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from task_folder import read_dockerfile


class MachineEnvironment(BaseEnvironment):
    capabilities = EnvironmentCapabilities(disable_internet=True)

    @staticmethod
    def type():
        return "machine"

    def _validate_definition(self):
        if more := read_dockerfile(self.environment_dir, (self.environment_dir / "Dockerfile").read_text())[2]:
            raise ValueError(f"{more!r}: no image is built here")

    async def start(self, force_build):
        root = self.root = Path(tempfile.mkdtemp())
        self.workdir, files, _ = read_dockerfile(
            self.environment_dir, (self.environment_dir / "Dockerfile").read_text()
        )
        self.folders = {path: root / path[1:] for path in (self.workdir, "/tests", "/solution", "/logs")}
        for folder in [*self.folders.values(), *(root / "logs" / name for name in ("agent", "verifier", "artifacts"))]:
            folder.mkdir(parents=True)
        for path, content in files.items():
            target = self.folders[self.workdir] / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    async def stop(self, delete):
        shutil.rmtree(self.root)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        words, seconds = ["bash", "-c", command], timeout_sec or 600
        run = asyncio.to_thread(
            machine.run, words, self.folders, cwd or self.workdir, seconds, variables=self._merge_env(env)
        )
        code, output = await run
        return ExecResult(stdout=output, stderr="", return_code=code)

    def find(self, path):
        """Return the path here of a path in the machine."""
        folder = max((known for known in self.folders if Path(path).is_relative_to(known)), key=len)
        return self.folders[folder] / Path(path).relative_to(folder)

    async def upload_file(self, source_path, target_path):
        shutil.copy(source_path, self.find(target_path))

    async def upload_dir(self, source_dir, target_dir):
        shutil.copytree(source_dir, self.find(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path, target_path):
        shutil.copy(self.find(source_path), target_path)

    async def download_dir(self, source_dir, target_dir):
        shutil.copytree(self.find(source_dir), target_dir, symlinks=True, dirs_exist_ok=True)
