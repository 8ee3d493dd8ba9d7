"""Read the folder of a Harbor task, which may be a stranger's: every fault is one ValueError before anything runs.

    task.toml, instruction.md, environment/Dockerfile, tests/test.sh, and solution/solve.sh if there is one

No image is built. The agent begins with the files that the Dockerfile copies; what else it does has to be in an image
that is there. Settings of the verifier and the environment that are not supported are errors, as they change a verdict.
"""

import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MAX_FILES, MAX_BYTES, MAX_SECONDS = 1_000, 16 << 20, 3_600
NEEDED = ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh")
VERIFIER_KEYS = {"timeout_sec", "env"}
# Resources of a container, which are not looked at.
RESOURCE_KEYS = set(
    "docker_image build_timeout_sec cpus memory_mb storage_mb memory storage gpus allow_internet".split()
)
TAKEN = "bin dev etc lib lib64 logs proc sbin solution tests tmp usr".split()
IMAGE = re.compile(r"([A-Za-z0-9][\w.:/@-]*)?", re.ASCII)
PLAIN = re.compile(r"[\w.@+ -]+", re.ASCII)


@dataclass(frozen=True)
class TaskFolder:
    """A task.

    files        those of the working folder `workdir` at the start, by relative path
    image        the one that it names, if any
    needs_image  what the Dockerfile does beyond FROM, WORKDIR and COPY; "" if nothing
    """

    folder: Path
    instruction: str
    workdir: str
    files: dict[str, bytes]
    image: str
    needs_image: str
    seconds: float
    variables: dict[str, str]

    @property
    def name(self) -> str:
        return self.folder.name


def read_task(folder: Path) -> TaskFolder:
    """Return the task of a folder. Raises ValueError for what cannot be used."""
    paths = check_paths(folder)
    for name in NEEDED:
        if name not in paths:
            raise ValueError(f"{folder}: there is no {name}; expected {', '.join(NEEDED)}")
    try:
        settings = tomllib.loads((folder / "task.toml").read_text())
        instruction = (folder / "instruction.md").read_text()
        dockerfile = (folder / "environment" / "Dockerfile").read_text()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder}: {error}; expected TOML in task.toml, and UTF-8") from None
    verifier, environment = (settings.get(name, {}) for name in ("verifier", "environment"))
    if not isinstance(verifier, dict) or not isinstance(environment, dict):
        raise ValueError(f"{folder}/task.toml: verifier and environment: expected tables")
    unknown = [f"verifier.{key}" for key in verifier.keys() - VERIFIER_KEYS]
    unknown += [f"environment.{key}" for key in environment.keys() - RESOURCE_KEYS]
    unknown += [key for key in settings if key in ("steps", "step")]
    unknown += [name for name in paths if name.startswith("environment/docker-compose")]
    if unknown:
        raise ValueError(f"{folder}: got {min(unknown)}, which is not supported; expected one step in a Dockerfile")
    seconds, variables = verifier.get("timeout_sec", 600.0), verifier.get("env", {})
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"{folder}/task.toml: verifier.timeout_sec: got {seconds!r}; expected up to {MAX_SECONDS}")
    # Harbor would put a variable of its own process in the place of ${NAME}.
    if not isinstance(variables, dict) or any(not isinstance(v, str) or "${" in v for v in variables.values()):
        raise ValueError(f"{folder}/task.toml: verifier.env: got {variables!r}; expected texts without ${{NAME}}")
    image = environment.get("docker_image", "")
    if not isinstance(image, str) or not IMAGE.fullmatch(image):
        raise ValueError(f"{folder}/task.toml: environment.docker_image: got {image!r}; expected the name of an image")
    workdir, files, more = read_dockerfile(folder / "environment", dockerfile)
    needs = f"docker_image {image}" if image else more
    return TaskFolder(folder, instruction, workdir, files, image, needs, float(seconds), variables)


def check_paths(folder: Path) -> list[str]:
    """Return the relative paths of all files. Raises ValueError for links, devices, odd names, or too much."""
    if folder.is_symlink() or not folder.is_dir():
        raise ValueError(f"{folder}: expected the folder of a task")
    paths, size = [], 0
    for path in sorted(folder.rglob("*")):
        relative, status = path.relative_to(folder).as_posix(), path.lstat()
        if not all(PLAIN.fullmatch(part) for part in relative.split("/")):
            raise ValueError(f"{folder}: got the name {relative!r}; expected letters, digits and ._@+- in names")
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise ValueError(f"{folder}: {relative} is a link or a device; expected files and folders alone")
        paths += [relative] if stat.S_ISREG(status.st_mode) else []
        size += status.st_size
        if size > MAX_BYTES or len(paths) > MAX_FILES:
            raise ValueError(f"{folder}: expected at most {MAX_FILES} files and {MAX_BYTES >> 20} MiB")
    return paths


def read_dockerfile(context: Path, text: str) -> tuple[str, dict[str, bytes], str]:
    """Return the working folder of a Dockerfile, the files that it copies there, and a line that does more."""
    workdir, files, more = PurePosixPath("/app"), {}, ""
    for line in text.replace("\\\n", " ").splitlines():
        instruction, *words = line.split() or ["#"]
        if instruction.startswith("#") or instruction.upper() == "FROM":
            continue
        if instruction.upper() == "WORKDIR" and len(words) == 1 and not files and is_inside(words[0], "/"):
            workdir = PurePosixPath(words[0])
            if workdir.parts[1] in TAKEN:
                raise ValueError(
                    f"{context}/Dockerfile: {line!r}: expected a folder that is not in /{workdir.parts[1]}"
                )
        elif instruction.upper() == "COPY" and len(words) > 1 and not words[0].startswith(("-", "[")):
            *sources, target = words
            for source in sources:
                origin = context / source
                if ".." in source or source.startswith("/") or not origin.exists():
                    raise ValueError(f"{context}/Dockerfile: {line!r}: expected a path in this folder that is there")
                # A folder's content is copied, not the folder; a file keeps its name in a folder.
                is_folder = target.endswith(("/", ".")) or len(sources) > 1
                for path in [origin] if origin.is_file() else sorted(p for p in origin.rglob("*") if p.is_file()):
                    below = path.relative_to(origin) if origin.is_dir() else path.name if is_folder else ""
                    place = workdir / target / below
                    if not is_inside(str(place), str(workdir)):
                        raise ValueError(f"{context}/Dockerfile: {line!r}: expected a target in {workdir}")
                    files[str(place.relative_to(workdir))] = path.read_bytes()
        elif instruction.upper() in ("ADD", "COPY", "WORKDIR"):
            raise ValueError(f"{context}/Dockerfile: {line!r}: expected WORKDIR /FOLDER, then COPY SOURCE TARGET")
        else:
            more = more or line.strip()
    return str(workdir), files, more


def is_inside(path: str, folder: str) -> bool:
    return ".." not in path and path != folder and PurePosixPath(path).is_relative_to(folder)
