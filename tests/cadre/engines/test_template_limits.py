"""Chat templates that do not end, or write without measure, are refused; threads go on as they were."""

import json
import threading
import time
from pathlib import Path
from shutil import copytree

import pytest

from cadre.engines import template_limits
from cadre.engines.chat_template import Template
from cadre.errors import EngineError
from cadre.plugins import embedded_models
from cadre.types import Message
from tests.cadre.cli.calling import call
from tests.cadre.engines.tiny import CHATML, byte_tokenizer

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "loop": LOOP,
    "output": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "macro": "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "lists": "{% for i in range(99999) | list %}{{ range(99999) | list | length }}{% endfor %}",
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.2)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_end(name: str) -> None:
    with pytest.raises(EngineError, match=r"not rendered: it does not end within 0.2 s") as raised:
        Template(byte_tokenizer(ENDLESS[name]))
    assert "\n" not in str(raised.value)


def test_a_template_without_end_where_no_clock_of_a_thread_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(time, "pthread_getcpuclockid")
    with pytest.raises(EngineError, match=r"not rendered: it does not end within 0.2 s"):
        Template(byte_tokenizer(LOOP))
    sleeping = template_limits._clocks(threading.get_ident())
    began = [clock() for clock in sleeping]
    time.sleep(0.3)  # as a machine that is suspended
    assert min(clock() - start for clock, start in zip(sleeping, began, strict=True)) < 0.2


def test_a_template_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 30.0)
    monkeypatch.setattr(template_limits, "MAX_GROWTH", 100 << 20)
    loop = "{% for i in range(99999) %}{% set ns.x = ns.x ~ 'x' * 1000000 %}{% endfor %}"
    with pytest.raises(EngineError, match="it takes more than 100 MiB of memory"):
        Template(byte_tokenizer("{% set ns = namespace(x='') %}" + loop))


def test_a_prompt_of_too_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_CHARACTERS", 1_000)
    with pytest.raises(EngineError, match="it writes 2,000 characters"):
        Template(byte_tokenizer("x" * 2_000))


def test_other_threads_and_what_comes_next_are_left_alone() -> None:
    """Where one template is stopped again and again, another thread renders, and this one goes on."""
    wrong, ended = [], threading.Event()
    usual = Template(byte_tokenizer(CHATML))
    expected = usual.render([Message("user", "x")], generation=True)

    def go_on() -> None:
        while not ended.is_set():
            if usual.render([Message("user", "x")], generation=True) != expected:
                wrong.append(1)

    beside = threading.Thread(target=go_on)
    beside.start()
    for _ in range(3):
        with pytest.raises(EngineError, match="does not end"):
            Template(byte_tokenizer(LOOP))
        until = time.monotonic() + 0.2
        while time.monotonic() < until:  # Python of this thread, in which a late stop would be raised
            pass
    ended.set()
    beside.join()
    assert not wrong


def test_the_command_line_names_it(tmp_path: Path) -> None:
    folder = copytree(embedded_models()["seed"], tmp_path / "model")
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    (folder / "chat_template.jinja").write_text(LOOP)
    done = call("check", "plan-path", "--model", str(folder))
    assert done.code == 2
    assert "does not end within 0.2 s" in done.err
    assert "Traceback" not in done.err
