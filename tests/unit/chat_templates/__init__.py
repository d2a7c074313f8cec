# ruff: noqa: E501  (a template is a text; its lines are its own)
"""Chat templates in the style of each model family, conversations, and what they render to.

Written for these tests.  EXPECTED is what Hugging Face's transformers 5.24 renders;
`test_template_hf.py` checks every pair against the installed one.
"""

from __future__ import annotations

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
CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "system": (SYSTEM, {"enable_thinking": False}),
    "thought": (THOUGHT, {"enable_thinking": True}),
    "tools": (TOOLS, {"tools": [WEATHER]}),
    "unfinished": (SYSTEM, {"add_generation_prompt": False, "reasoning_effort": "low"}),
}

TEMPLATES = {
    file.stem: file.read_bytes().decode() for file in sorted(Path(__file__).parent.glob("*.jinja"))
}

EXPECTED: dict[tuple[str, str], str] = {
    (
        "chatml",
        "plain",
    ): "<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n",
    (
        "smollm2",
        "plain",
    ): "<|im_start|>system\nYou are helpful<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n",
    (
        "smollm2",
        "system",
    ): "<|im_start|>system\nBe brief.\n<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n",
    (
        "smollm3",
        "thought",
    ): "<|im_start|>system\n## Metadata\n\nReasoning Mode: /think\n\n<|im_end|>\n<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\na1<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\na2<|im_end|>\n<|im_start|>user\nq3<|im_end|>\n<|im_start|>assistant\n",
    (
        "smollm3",
        "unfinished",
    ): "<|im_start|>system\n## Metadata\n\nReasoning Mode: /think\n\n<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n",
    ("generation_lines", "plain"): "user: Hi & <b>you</b>\nA:\nHello 'there' 👋2\n\nuser: 1 < 2?\n",
    (
        "qwen25",
        "plain",
    ): "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n",
    (
        "qwen25",
        "tools",
    ): '<|im_start|>system\nUse tools.\n\n# Tools\n\n<tools>\n{"type": "function", "function": {"name": "get_weather", "description": "Current weather in a city & its <suburbs>", "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", "Oslo"]}}, "required": ["city"]}}}\n</tools><|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "wet": null}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n{"t": 3.5}\n</tool_response><|im_end|>\n<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n',
    (
        "qwen3",
        "thought",
    ): "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\n<think>\nso\n</think>\n\na2<|im_end|>\n<|im_start|>user\nq3<|im_end|>\n<|im_start|>assistant\n",
    (
        "qwen3",
        "system",
    ): "<|im_start|>system\nBe brief.\n<|im_end|>\n<|im_start|>user\n  Hi & <b>you</b>\n<|im_end|>\n<|im_start|>assistant\nHello 'there' 👋<|im_end|>\n<|im_start|>user\n1 < 2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    (
        "llama2",
        "system",
    ): "<s>[INST] <<SYS>>\nBe brief.\n\n<</SYS>>\n\n  Hi & <b>you</b> [/INST] Hello 'there' 👋 </s><s>[INST] 1 < 2? [/INST]",
    (
        "llama3",
        "plain",
    ): "<s><|start_header_id|>user<|end_header_id|>\n\nHi & <b>you</b><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello 'there' 👋<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n1 < 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    (
        "llama31",
        "system",
    ): "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi & <b>you</b><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello 'there' 👋<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n1 < 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    (
        "llama31",
        "tools",
    ): '<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2024\n\nUse tools.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{\n    "type": "function",\n    "function": {\n        "name": "get_weather",\n        "description": "Current weather in a city & its <suburbs>",\n        "parameters": {\n            "type": "object",\n            "properties": {\n                "city": {\n                    "type": "string",\n                    "enum": [\n                        "Köln",\n                        "Oslo"\n                    ]\n                }\n            },\n            "required": [\n                "city"\n            ]\n        }\n    }\n}\n\nWeather?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{"name": "get_weather", "parameters": {"city": "Köln", "days": 2, "wet": null}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"{\\"t\\": 3.5}"<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nThanks<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
    (
        "gemma2",
        "plain",
    ): "<s><start_of_turn>user\nHi & <b>you</b><end_of_turn>\n<start_of_turn>model\nHello 'there' 👋<end_of_turn>\n<start_of_turn>user\n1 < 2?<end_of_turn>\n<start_of_turn>model\n",
    (
        "gemma3",
        "system",
    ): "<s><start_of_turn>user\nBe brief.\n\n\nHi & <b>you</b><end_of_turn>\n<start_of_turn>model\nHello 'there' 👋<end_of_turn>\n<start_of_turn>user\n1 < 2?<end_of_turn>\n<start_of_turn>model\n",
    (
        "mistral",
        "tools",
    ): '<s>[INST] Weather?[/INST][TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "wet": null}, "id": "call00001"}]</s>[TOOL_RESULTS] {"content": {"t": 3.5}, "call_id": "call00001"}[/TOOL_RESULTS][AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "get_weather", "description": "Current weather in a city & its <suburbs>", "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", "Oslo"]}}, "required": ["city"]}}}][/AVAILABLE_TOOLS][INST] Use tools.\n\nThanks[/INST]',
    (
        "deepseek",
        "thought",
    ): "<s><｜User｜>q1<｜Assistant｜>\n\na1<｜end▁of▁sentence｜><｜User｜>q2<｜Assistant｜>a2<｜end▁of▁sentence｜><｜User｜>q3<｜Assistant｜><think>\n",
    (
        "deepseek",
        "tools",
    ): "<s>Use tools.<｜User｜>Weather?<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{'city': 'Köln', 'days': 2, 'wet': None}\n```<｜tool▁call▁end｜><｜tool▁output▁begin｜>{\"t\": 3.5}<｜tool▁output▁end｜><｜User｜>Thanks<｜Assistant｜><think>\n",
    (
        "granite",
        "system",
    ): "<|start_of_role|>system<|end_of_role|>Be brief.\n<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>  Hi & <b>you</b>\n<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>Hello 'there' 👋<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>1 < 2?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    (
        "phi3",
        "plain",
    ): "<|user|>\n  Hi & <b>you</b>\n<|end|>\n<|assistant|>\nHello 'there' 👋<|end|>\n<|user|>\n1 < 2?<|end|>\n<|assistant|>\n",
    (
        "phi4mini",
        "system",
    ): "<|system|>Be brief.\n<|end|><|user|>  Hi & <b>you</b>\n<|end|><|assistant|>Hello 'there' 👋<|end|><|user|>1 < 2?<|end|><|assistant|>",
    (
        "commandr",
        "system",
    ): "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.\n<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi & <b>you</b><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello 'there' 👋<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>1 < 2?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    (
        "commandr_tools",
        "tools",
    ): '```python\ndef get_weather(city: str):\n    Current weather in a city & its <suburbs>\n```\nSYSTEM: Use tools.\nUSER: Weather?\nASSISTANT: (calls){\n  "arguments": {\n    "city": "Köln",\n    "days": 2,\n    "wet": null\n  },\n  "name": "get_weather"\n}\nTOOL: {"t": 3.5}\nUSER: Thanks',
    (
        "hermes",
        "tools",
    ): '<s><|im_start|>system\nYou call functions. <tools>{"name": "get_weather", "sig": "(city: str)", "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", "Oslo"]}}, "required": ["city"]}} </tools><|im_end|>\n<|im_start|>system\nUse tools.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "wet": null}}\n</tool_call><|im_end|>\n<|im_start|>tool\n{"t": 3.5}<|im_end|>\n<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n',
    (
        "zephyr",
        "system",
    ): "<|system|>\nBe brief.\n</s>\n<|user|>\n  Hi & <b>you</b>\n</s>\n<|assistant|>\nHello 'there' 👋</s>\n<|user|>\n1 < 2?</s>\n<|assistant|>\n",
    (
        "vicuna",
        "system",
    ): "Be brief.\n USER: Hi & <b>you</b> ASSISTANT: Hello 'there' 👋</s> USER: 1 < 2? ASSISTANT:",
    (
        "nemotron",
        "plain",
    ): "<extra_id_0>User\n  Hi & <b>you</b>\n (1)    1|'user' user  \n<extra_id_1>Assistant\nHello 'there' 👋 (2)    2|'assistant' assistant\n<extra_id_0>User\n1 < 2? (3)    3|'user' user  \n",
    (
        "kimi",
        "tools",
    ): '<|im_system|>tool_declare<|im_middle|>[{"type":"function","function":{"name":"get_weather","description":"Current weather in a city & its <suburbs>","parameters":{"type":"object","properties":{"city":{"type":"string","enum":["Köln","Oslo"]}},"required":["city"]}}}]<|im_end|><|im_system|>system<|im_middle|>Use tools.<|im_end|><|im_user|>user<|im_middle|>Weather?<|im_end|><|im_assistant|>assistant<|im_middle|><|tool_call_begin|>call00001{"city": "K\\u00f6ln", "days": 2, "wet": null}<|tool_call_end|><|im_end|><|im_tool|>get_weather<|im_middle|>{"t": 3.5}<|im_end|><|im_user|>user<|im_middle|>Thanks<|im_end|><|im_assistant|>assistant<|im_middle|>',
    (
        "jamba",
        "system",
    ): "system=Be brief. ; user=  Hi &...; assistant=Hello 'there' 👋; user=1 < 2? 49 assistant,system,user 1 < ['assistant', 'system', 'user'] {'a': 1, 'b': [1.5, None, True]}",
}
"""(template, conversation) -> text."""
