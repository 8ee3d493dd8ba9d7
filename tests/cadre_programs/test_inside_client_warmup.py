"""Late imports of a program's client are done before instances are forked, without other traces."""

import importlib
import subprocess
import sys
from pathlib import Path

from cadre_programs import inside

INSIDE = str(Path(inside.__file__).parent)
BEGIN = f"import sys, threading\nsys.path.insert(0, {INSIDE!r})\nimport cadre_client_warmup\n"


def said(code):
    result = subprocess.run(
        [sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout.split()


def test_answers_of_both_interfaces_have_their_types_and_no_thread_is_left():
    code = (
        "import openai\n"
        "from openai.types.chat import ChatCompletion\n"
        "from openai.types.responses import Response\n"
        "complete = lambda: [kind.__pydantic_complete__ for kind in (ChatCompletion, Response)]\n"
        "before = complete()\n"
        "cadre_client_warmup.warm_up()\n"
        "print(*before, *complete(), threading.active_count())\n"
    )
    assert said(code) == ["False", "False", "True", "True", "1"]


def test_a_program_without_the_client_is_left_alone():
    assert said("cadre_client_warmup.warm_up()\nprint('openai' in sys.modules, threading.active_count())") == [
        "False",
        "1",
    ]


def test_a_client_of_another_age_does_not_keep_the_program_from_starting():
    assert said("sys.modules['openai'] = threading\ncadre_client_warmup.warm_up()\nprint('on')") == ["on"]


def test_what_a_package_imports_at_its_first_call_is_there(monkeypatch, tmp_path):
    (tmp_path / "late_library.py").write_text("")
    for folder in (INSIDE, str(tmp_path)):
        monkeypatch.syspath_prepend(folder)
    warmup = importlib.import_module("cadre_client_warmup")
    monkeypatch.delitem(sys.modules, "openai", raising=False)
    monkeypatch.setattr(warmup, "LATE_IMPORTS", {"pytest": "late_library", "not_imported": "this"})
    warmup.warm_up()
    assert sys.modules.pop("late_library").__file__ == str(tmp_path / "late_library.py")
