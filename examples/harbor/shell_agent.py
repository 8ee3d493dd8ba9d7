"""The smallest harness: the model's ```bash block is run and its output shown, until an answer has none."""

import json
import os
import re
import subprocess
import sys
from urllib.request import Request, urlopen

messages = [
    {"role": "user", "content": f"{sys.argv[1]}\nAnswer with one ```bash block, or with none once you are done."}
]
for _ in range(30):
    body = json.dumps({"model": "coder", "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with urlopen(Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    block = re.search(r"```bash\n(.*?)```", answer, re.DOTALL)
    if not block:
        break
    ended = subprocess.run(["bash", "-c", block[1]], capture_output=True, text=True, errors="replace")
    shown = f"{ended.stdout}{ended.stderr}"[-4000:] or "(no output)"
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": shown}]
