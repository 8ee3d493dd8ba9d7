"""Coding agents from npm, each started by its command line with a home of its own, and told by its own settings where
the endpoint is. The model that they name is the role. `BIN` in the recipe's `environment` has their commands.
"""

import json
import os

from repository import collect, prepare, run


def start(task, settings, command, more=()):
    """Write the settings, files by their paths in the home, run the command and return the repository's files.

    Both may hold {url} and {key} in place of the endpoint's. `more` are variables that it needs.
    """
    folder, variables = prepare(task)
    variables["PATH"] = f"{os.environ['BIN']}:{variables['PATH']}"
    endpoint = {"{url}": os.environ["OPENAI_BASE_URL"], "{key}": os.environ["OPENAI_API_KEY"]}

    def fill(text):
        for name, value in endpoint.items():
            text = text.replace(name, value)
        return text

    for name, value in settings.items():
        path = folder.parent / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(value if isinstance(value, str) else json.dumps(value)))
    # Whoever has the key belongs to this instance, and ends with it.
    run([fill(word) for word in command], folder, variables | {"OPENAI_API_KEY": endpoint["{key}"], **dict(more)})
    return collect(folder)


def qwen_code(task):
    settings = {"privacy": {"usageStatisticsEnabled": False}, "general": {"disableAutoUpdate": True}}
    settings["memory"] = {"enableManagedAutoMemory": False}  # its prompt has the path of the folder in another form
    endpoint = ["--auth-type", "openai", "--openai-base-url", "{url}", "--openai-api-key", "{key}", "-m", "coder"]
    command = ["qwen", *endpoint, "--yolo", "--chat-recording", "false", "-p", task["issue"]]
    more = {"QWEN_CODE_NO_RELAUNCH": "true"}  # it would start itself again with more memory
    return start(task, {".qwen/settings.json": settings}, command, more)


def opencode(task):
    provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{url}", "apiKey": "{key}"}}
    settings = {
        "provider": {"cadre": provider | {"models": {"coder": {}}}},
        "model": "cadre/coder",
        "small_model": "cadre/coder",
        "agent": {"title": {"disable": True}},  # a second call beside the first
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
    }
    offline = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    more = {f"OPENCODE_DISABLE_{what}": "1" for what in offline}
    return start(task, {".config/opencode/opencode.json": settings}, ["opencode", "run", task["issue"]], more)


CODEX = """
model = "coder"
model_provider = "cadre"
web_search = "disabled"
check_for_update_on_startup = false
[features]  # tools that come as a namespace, which the endpoint does not take, and ones that need an account
multi_agent = false
goals = false
apps = false
[analytics]
enabled = false
[model_providers.cadre]
name = "cadre"
base_url = "{url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""


def codex(task):
    command = ["codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "--color", "never", task["issue"]]
    return start(task, {".codex/config.toml": CODEX}, command)
