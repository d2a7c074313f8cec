"""Chat templates in the style of each model family, conversations, and what they render to.

Written for these tests.  EXPECTED is what Hugging Face's transformers 5.25 renders;
`test_template_hf.py` checks every pair against the installed one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOS, EOS = "<s>", "</s>"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city & its <suburbs>",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Köln", "Oslo"]}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "wet": None}},
}
PLAIN = [
    {"role": "user", "content": "  Hi & <b>you</b>\n"},
    {"role": "assistant", "content": "Hello 'there' 👋"},
    {"role": "user", "content": "1 < 2?"},
]
SYSTEM = [{"role": "system", "content": "Be brief.\n"}, *PLAIN]
THOUGHT = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\na1"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": "a2", "reasoning_content": "so"},
    {"role": "user", "content": "q3"},
]
TOOLS = [
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"t": 3.5}', "name": "get_weather", "tool_call_id": "call00001"},
    {"role": "user", "content": "Thanks"},
]
CALLED = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "They want weather.",
        "tool_calls": [CALL],
    },
    {"role": "tool", "content": "wet", "name": "get_weather", "tool_call_id": "call00001"},
]
DOCUMENTS = [
    {"doc_id": "7", "title": "Rain", "text": "It rained <much>."},
    {"title": "Sun", "text": "It shone."},
]
CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "system": (SYSTEM, {"enable_thinking": False}),
    "thought": (THOUGHT, {"enable_thinking": True}),
    "tools": (TOOLS, {"tools": [WEATHER]}),
    "called": (CALLED, {"tools": [WEATHER]}),
    "documents": (PLAIN, {"documents": DOCUMENTS}),
    "unfinished": (SYSTEM, {"add_generation_prompt": False, "reasoning_effort": "low"}),
}

TEMPLATES = {
    file.stem: file.read_bytes().decode() for file in sorted(Path(__file__).parent.glob("*.jinja"))
}

EXPECTED: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "expected.json").read_text("utf-8")
)
"""template -> conversation -> text."""
