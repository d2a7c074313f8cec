"""Answers with calls as every family writes them, and what a client must see of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ponytail.types import Tool

WEATHER = Tool(
    "get_weather",
    "The weather in a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
TIME = Tool("get_time", "The time.", {"type": "object", "properties": {}})
TOOLS = (WEATHER, TIME)

PARIS = {"city": "Paris, « 7e »"}
ROME = {"city": "Rome", "days": 3, "exact": True}
J_PARIS, J_ROME = (json.dumps(args, ensure_ascii=False) for args in (PARIS, ROME))

Call = tuple[str, dict[str, Any]]
ONE: list[Call] = [("get_weather", PARIS)]
TWO: list[Call] = [("get_weather", PARIS), ("get_weather", ROME)]


@dataclass(frozen=True)
class Case:
    """An answer in one family's form; `is_written`: its grammar must take the calls too."""

    family: str
    text: str
    calls: list[Call]
    content: str = ""
    reasoning: str = ""
    is_written: bool = True


def named(args: str, name: str = "get_weather", key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {args}}}'


def deepseek(*calls: str) -> str:
    inner = "".join(f"<｜tool▁call▁begin｜>{one}<｜tool▁call▁end｜>" for one in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def kimi(*calls: str) -> str:
    inner = "".join(f"<|tool_call_begin|>{one}<|tool_call_end|>" for one in calls)
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def coder(*members: str, name: str = "get_weather") -> str:
    inner = "\n".join(members)
    return f"<tool_call>\n<function={name}>\n{inner}\n</function>\n</tool_call>"


def parameter(name: str, value: str) -> str:
    return f"<parameter={name}>\n{value}\n</parameter>"


def glm(*members: str, name: str = "get_weather") -> str:
    return "<tool_call>" + "\n".join((name, *members)) + "\n</tool_call>"


def member(name: str, value: str) -> str:
    return f"<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>"


def v3(args: str) -> str:
    return f"function<｜tool▁sep｜>get_weather\n```json\n{args}\n```"


ACTION = '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": %s}'
PLAIN_ACTION = '{"tool_name": "get_weather", "parameters": %s}'
C, M, E, S = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"

PRINTS = "```tool_code\nprint(5)\n```"
CASES = [
    Case("hermes", f"<tool_call>\n{named(J_PARIS)}\n</tool_call>", ONE),
    Case(
        "hermes",
        f"Let me see.\n<tool_call>{named(J_PARIS)}</tool_call>\n"
        f"<tool_call>\n{named(J_ROME)}\n</tool_call>",
        TWO,
        content="Let me see.",
    ),
    Case("generic", f"<tool_call>\n{named('{}', 'get_time')}\n</tool_call>", [("get_time", {})]),
    Case("mistral", f"[TOOL_CALLS] [{named(J_PARIS)}, {named(J_ROME)}]", TWO),
    Case("mistral-args", f"[TOOL_CALLS]get_weather[ARGS]{J_PARIS}", ONE),
    Case(
        "mistral-args",
        f"[TOOL_CALLS]get_weather[ARGS]{J_PARIS}[TOOL_CALLS]get_weather[ARGS]{J_ROME}",
        TWO,
    ),
    Case("granite", f"<|tool_call|>[{named(J_PARIS)}, {named(J_ROME)}]", TWO),
    Case("phi", f"<|tool_call|>[{named(J_PARIS)}]<|/tool_call|>", ONE),
    Case("phi", f"functools[{named(J_PARIS)}, {named(J_ROME)}]", TWO),
    Case("llama3-json", named(J_PARIS, key="parameters"), ONE),
    Case(
        "llama3-json",
        f"<|python_tag|>{named(J_PARIS, key='parameters')}; {named(J_ROME, key='parameters')}",
        TWO,
    ),
    Case(
        "llama3-json",
        f'{{"type": "function", "name": "get_weather", "parameters": {J_PARIS}}}',
        ONE,
    ),
    Case(
        "llama3-json",
        '<|python_tag|>get_weather.call(city="Rome", days=3, exact=True)',
        [("get_weather", ROME)],
        is_written=False,
    ),
    Case(
        "pythonic",
        '[get_weather(city="Paris, « 7e »"), get_weather(city="Rome", days=3, exact=True)]',
        TWO,
    ),
    Case("pythonic", "<|python_start|>[get_time()]<|python_end|>", [("get_time", {})]),
    Case(
        "glm",
        glm(member("city", "Rome"), member("days", "3"), member("exact", "true")),
        [("get_weather", ROME)],
    ),
    Case(
        "glm",
        "So:\n" + glm(member("city", PARIS["city"])) + "\n" + glm(name="get_time"),
        [*ONE, ("get_time", {})],
        content="So:",
    ),
    Case(
        "qwen3-coder",
        coder(parameter("city", "Rome"), parameter("days", "3"), parameter("exact", "true")),
        [("get_weather", ROME)],
    ),
    Case(
        "qwen3-coder",
        coder(parameter("city", PARIS["city"])) + "\n" + coder(name="get_time"),
        [*ONE, ("get_time", {})],
    ),
    Case(
        "qwen3-coder",
        "<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>",
        [("get_time", {})],
        is_written=False,
    ),
    Case("deepseek-v3", deepseek(v3(J_PARIS)), ONE),
    Case("deepseek-v3", "Yes.\n\n" + deepseek(v3(J_PARIS), v3(J_ROME)), TWO, content="Yes."),
    Case(
        "deepseek-v3.1",
        deepseek(f"get_weather<｜tool▁sep｜>{J_PARIS}", f"get_weather<｜tool▁sep｜>{J_ROME}"),
        TWO,
    ),
    Case(
        "kimi",
        kimi(
            f"functions.get_weather:0<|tool_call_argument_begin|>{J_PARIS}",
            f"functions.get_weather:1<|tool_call_argument_begin|>{J_ROME}",
        ),
        TWO,
    ),
    Case(
        "command-r7b",
        f"<|START_ACTION|>[\n    {ACTION % J_PARIS},\n    {ACTION % J_ROME}\n]<|END_ACTION|>",
        TWO,
    ),
    Case(
        "command-r7b",
        "<|START_RESPONSE|>Twelve.<|END_RESPONSE|>",
        [],
        content="Twelve.",
        is_written=False,
    ),
    Case("command-r", f"Action:\n```json\n[{PLAIN_ACTION % J_PARIS}]\n```", ONE),
    Case("command-r", f"Action: ```json\n[{PLAIN_ACTION % J_PARIS}]```", ONE),
    Case(
        "command-r",
        'Action: ```json\n[{"tool_name": "directly_answer", "parameters": {}}]\n```',
        [],
        is_written=False,
    ),
    Case("command-r", "Action: none.", [], content="Action: none.", is_written=False),
    Case(
        "gemma",
        '```tool_code\nget_weather(city="Paris, « 7e »")\n'
        'get_weather(city="Rome", days=3, exact=True)\n```',
        TWO,
    ),
    Case("gemma", PRINTS, [], content=PRINTS, is_written=False),
    Case("gemma", "```tool_code\nprint(get_time())\n```", [("get_time", {})], is_written=False),
    Case(
        "function-gemma",
        "<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3,exact:true}"
        "<end_function_call>",
        [("get_weather", ROME)],
    ),
    Case(
        "function-gemma",
        "<start_function_call>call:f{a:[<escape>x<escape>,1],b:{c:<escape>}<escape>}}"
        "<end_function_call>",
        [("f", {"a": ["x", 1], "b": {"c": "}"}})],
        is_written=False,
    ),
    Case(
        "harmony",
        f"{C}analysis{M}Hm.{E}{S}assistant{C}commentary to=functions.get_weather "
        f"<|constrain|>json{M}{J_PARIS}<|call|>",
        ONE,
        reasoning="Hm.",
        is_written=False,
    ),
    Case("harmony", f" to=functions.get_weather{C}commentary json{M}{J_PARIS}", ONE),
    Case(
        "harmony", f"{C}commentary to=functions.get_weather <|constrain|>json{M}{J_ROME}", TWO[1:]
    ),
    Case(
        "harmony",
        f"{C}analysis{M}Hm.{E}{S}assistant{C}final{M}Use to=functions.f.<|return|>",
        [],
        content="Use to=functions.f.",
        reasoning="Hm.",
        is_written=False,
    ),
    Case(
        "harmony",
        f"{C}commentary{M}I look.{E}{S}assistant to=functions.get_time{C}commentary{M}{{}}<|call|>",
        [("get_time", {})],
        content="I look.",
        is_written=False,
    ),
]
