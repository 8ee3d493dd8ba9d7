"""Small chat templates in the ways in which models write tools and calls, and the control tokens that they use."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken

from tiny_models import byte_tokenizer

OFFER = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
)
OPEN, END = "<|im_start|>{{ m.role }}\n", "<|im_end|>\n"
LAST = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def chat(calls: str, prefix: str = "", result: str = "{{ m.content }}", offer: str = OFFER) -> str:
    """ChatML with `calls` for a message that has some; `c` is a function, `last` tells the last of them."""
    return (
        f"{offer}{{% for m in messages %}}{prefix}{OPEN}{{% if m.tool_calls %}}{calls}"
        f"{{% elif m.role == 'tool' %}}{result}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
        f"{END}{{% endfor %}}{LAST}"
    )


def each(call: str, between: str = "") -> str:
    """`call` for every call of a message."""
    return (
        "{{ m.content or '' }}{% for t in m.tool_calls %}{% set c = t.function %}"
        + call
        + (f"{{% if not loop.last %}}{between}{{% endif %}}" if between else "")
        + "{% endfor %}"
    )


SINGLE = "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
PAIR = '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}'
PARAMETERS = '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}'
NINE = (
    "{% for t in m.tool_calls %}{% if t.id | length != 9 %}{{ raise_exception('ids of nine') }}{% endif %}{% endfor %}"
)
TAGGED = (
    "<tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments.items() %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
GLM = (
    "<tool_call>{{ c.name }}\n{% for k, v in c.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>"
)
MINIMAX = (
    '<invoke name="{{ c.name }}">\n{% for k, v in c.arguments.items() %}<parameter name="{{ k }}">'
    "{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n"
)
PYTHON = (
    "{% for t in m.tool_calls %}{{ t.function.name }}({% for k, v in t.function.arguments.items() %}{{ k }}="
    "{{ v | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}"
)
ESCAPE = (
    "<start_function_call>call:{{ c.name }}{{ '{' }}{% for k, v in c.arguments | dictsort %}{{ k }}:"
    "{{ '<escape>' ~ v ~ '<escape>' if v is string else v | tojson }}{% if not loop.last %},{% endif %}{% endfor %}"
    "{{ '}' }}<end_function_call>"
)
GEMMA_4 = (
    ESCAPE.replace("<escape>", '<|"|>')
    .replace("<start_function_call>", "<|tool_call>")
    .replace("<end_function_call>", "<tool_call|>")
)
LISTED = (
    "[{% for t in m.tool_calls %}{% set c = t.function %}" + PAIR + "{% if not loop.last %}, {% endif %}{% endfor %}]"
)
KIMI = "<|tool_call_begin|>{{ t.id }}<|tool_call_argument_begin|>{{ c.arguments | tojson }}<|tool_call_end|>"
D = "\uff5c"

# By name the part of a template that writes the calls of a message.
FORMS = {
    "hermes": each(f"<tool_call>\n{PAIR}\n</tool_call>", "\n"),
    "hermes of arguments as text": each(
        '<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments }}}\n</tool_call>', "\n"
    ),
    "llama bare": SINGLE + "{% set c = m.tool_calls[0].function %}" + PARAMETERS,
    "llama tag": SINGLE + "{% set c = m.tool_calls[0].function %}<|python_tag|>" + PARAMETERS,
    "bare in sequence": "{% for t in m.tool_calls %}{% set c = t.function %}" + PARAMETERS + "{% if not loop.last %}; "
    "{% endif %}{% endfor %}",
    "bare list": LISTED,
    "first call alone": "{% set c = m.tool_calls[0].function %}" + PARAMETERS,
    "pythonic": f"[{PYTHON}]",
    "pythonic in marks": f"<|python_start|>[{PYTHON}]<|python_end|>",
    "mistral": f"{NINE}[TOOL_CALLS] {LISTED}",
    "mistral named": f"{NINE}{each('[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}')}",
    "mistral ids": NINE + each("[TOOL_CALLS]{{ c.name }}[CALL_ID]{{ t.id }}[ARGS]{{ c.arguments | tojson }}"),
    "deepseek": f"<{D}tool▁calls▁begin{D}>"
    + each(
        f"<{D}tool▁call▁begin{D}>function<{D}tool▁sep{D}>{{{{ c.name }}}}\n```json\n{{{{ c.arguments | tojson }}}}\n```"
        f"<{D}tool▁call▁end{D}>",
        "\n",
    )
    + f"<{D}tool▁calls▁end{D}>",
    "deepseek v3.1": f"<{D}tool▁calls▁begin{D}>"
    + each(
        f"<{D}tool▁call▁begin{D}>{{{{ c.name }}}}<{D}tool▁sep{D}>{{{{ c.arguments | tojson }}}}<{D}tool▁call▁end{D}>"
    )
    + f"<{D}tool▁calls▁end{D}>",
    "phi": f"<|tool_call|>{LISTED}<|/tool_call|>",
    "granite": f"<|tool_call|>{LISTED}",
    "command": "Action: ```json\n[{% for t in m.tool_calls %}{% set c = t.function %}\n    "
    '{"tool_name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}{% if not loop.last %},{% endif %}'
    "{% endfor %}\n]\n```",
    "command r7b": '<|START_ACTION|>[{% for t in m.tool_calls %}{"tool_call_id": "{{ loop.index0 }}", "tool_name": '
    '"{{ t.function.name }}", "parameters": {{ t.function.arguments | tojson }}}{% if not loop.last %}, {% endif %}'
    "{% endfor %}]<|END_ACTION|>",
    "qwen coder": each(TAGGED, "\n"),
    "glm": each(GLM, "\n"),
    "minimax": "<minimax:tool_call>\n" + each(MINIMAX) + "</minimax:tool_call>",
    "functiongemma": each(ESCAPE),
    "gemma 4": each(GEMMA_4),
    "gemma 4 of objects": each(
        "{% set arguments = c.arguments if c.arguments is mapping else raise_exception('no object') %}" + GEMMA_4
    ),
    "kimi": f"<|tool_calls_section_begin|>{each(KIMI)}<|tool_calls_section_end|>",
    "openai nested": each('<call>{"type": "function", "function": ' + PAIR + "}</call>"),
    "function tag": each("<function={{ c.name }}>{{ c.arguments | tojson }}</function>"),
    "arguments first": each('<tool_call>{"arguments": {{ c.arguments | tojson }}, "name": "{{ c.name }}"}</tool_call>'),
}
# By name whole templates that write results in the turn of their call, or take the tool's name or its id from the call.
HERMES = (
    "{{ m.content }}{% for t in m.tool_calls or [] %}{% set c = t.function %}<tool_call>\n"
    + PAIR
    + "\n</tool_call>{% endfor %}"
)
# `write` for every result that follows the message m with calls.
FOLLOWING = (
    "{% set ns = namespace(on=true) %}{% for r in messages[loop.index0 + 1:] %}{% if r.role != 'tool' %}"
    "{% set ns.on = false %}{% elif ns.on %}WRITE{% endif %}{% endfor %}"
)
NOT_AFTER_RESULTS = LAST.replace("add_generation_prompt", "add_generation_prompt and messages[-1].role != 'tool'")


def turns(assistant: str, tool: str, last: str = LAST) -> str:
    """ChatML with `assistant` for messages by it, and `tool` for results."""
    return (
        f"{OFFER}{{% for m in messages %}}{{% if m.role == 'assistant' %}}{assistant}{{% elif m.role == 'tool' %}}"
        f"{tool}{{% else %}}{OPEN}{{{{ m.content }}}}{END}{{% endif %}}{{% endfor %}}{last}"
    )


RESULTS = {
    "result in the turn of the call": turns(
        OPEN
        + HERMES
        + "{% if m.tool_calls %}"
        + FOLLOWING.replace("WRITE", "<tool_response>{{ r.content }}</tool_response>")
        + f"{{% else %}}{END}{{% endif %}}",
        "",
        NOT_AFTER_RESULTS,
    ),
    "result after the turn of the call": turns(
        OPEN
        + HERMES
        + END
        + "{% if m.tool_calls %}"
        + FOLLOWING.replace("WRITE", "<|im_start|>tool\n{{ r.content }}<|im_end|>\n")
        + "{% endif %}",
        "",
    ),
    # As Gemma 4's since April: words come after the results, and the mark that opens results ends a turn of calls.
    "result before the words of its turn": turns(
        OPEN
        + each(GEMMA_4).removeprefix("{{ m.content or '' }}")
        + "{% if m.tool_calls and (loop.last or messages[loop.index].role != 'tool') %}<|tool_response>"
        + "{% elif m.tool_calls %}"
        + FOLLOWING.replace(
            "WRITE",
            "<|tool_response>response:{% for t in m.tool_calls if t.id == r.tool_call_id %}{{ t.function.name }}"
            "{% endfor %}{{ '{' }}{{ r.content }}{{ '}' }}<tool_response|>",
        )
        + "{% endif %}{{ m.content }}"
        + f"{{% if not m.tool_calls %}}{END}{{% endif %}}",
        "",
        NOT_AFTER_RESULTS,
    ),
    "name in the result": turns(OPEN + HERMES + END, "<|im_start|>tool {{ m.name }}\n{{ m.content }}" + END),
    "name from the call before": turns(
        f"{{% set calls.name = m.tool_calls[0].function.name if m.tool_calls else '' %}}{OPEN}{HERMES}{END}",
        "<|im_start|>functions.{{ calls.name }} to=assistant\n{{ m.content }}" + END,
    ).replace("{% for m in", "{% set calls = namespace(name='') %}{% for m in", 1),
    "id in the result": turns(
        f"{OPEN}{each(KIMI)}{END}", "<|im_start|>tool\n## Return of {{ m.tool_call_id }}\n{{ m.content }}" + END
    ),
    "a line after the call": turns(
        f"{OPEN}{HERMES}{{% if m.tool_calls %}}{{{{ '\n' }}}}{{% endif %}}{END}",
        "<|im_start|>tool\n{{ m.content }}" + END,
    ),
}
SPECIAL = (
    "<|tool_response>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
)
PLAIN = (
    "<tool_call>",
    "</tool_call>",
    f"<{D}tool▁calls▁begin{D}>",
    f"<{D}tool▁call▁begin{D}>",
    f"<{D}tool▁sep{D}>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<think>",
    "</think>",
)


def tokenizer(template: Any, added: bool = True) -> Any:
    """The byte tokenizer with a template and the control tokens of these forms."""
    built = byte_tokenizer()
    if added:
        built.add_special_tokens({"additional_special_tokens": [*SPECIAL, "<|im_start|>", "<|im_end|>"]})
        built.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN])
    built.chat_template = template
    return built


def parse(template: Any, prompt_ids: Any, token_ids: Any, tools: Any) -> Any:
    """The message of a completion."""
    return template.parse_answer(prompt_ids, token_ids, tools)[0]
