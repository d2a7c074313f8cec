"""How long the grammar of many tools takes: when they first come, and when they come again.

    python benchmarks/tools_compile.py --model smollm2.gguf --tools 60

Three fresh starts; the median counts.  One JSON line to stdout, times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from ponytail.gguf import inspect
from ponytail.llama.model import Model
from ponytail.text.answers import Answers
from ponytail.text.template import ChatTemplate
from ponytail.types import ChatPrompt, GenerateRequest, Message, Tool, ToolUse

TYPES = ("string", "integer", "boolean", "number")


def tool(index: int) -> Tool:
    """Eight parameters: six plain ones, one of a few words, one list of objects."""
    properties: dict[str, Any] = {
        f"p{i}": {"type": TYPES[i % len(TYPES)], "description": "a value"} for i in range(6)
    }
    item = {"id": {"type": "integer"}, "name": {"type": "string", "maxLength": 50}}
    properties["mode"] = {"enum": [f"mode{index}{i}" for i in range(5)]}
    properties["items"] = {
        "type": "array",
        "items": {"type": "object", "properties": item, "required": ["id"]},
    }
    parameters = {
        "type": "object",
        "properties": properties,
        "required": ["p0", "mode"],
        "additionalProperties": False,
    }
    return Tool(f"tool_{index}", "A tool.", parameters)


def plan_ms(answers: Answers, request: GenerateRequest) -> float:
    started = time.perf_counter()
    answers.plan(request)
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tools", type=int, default=60)
    args = parser.parse_args()
    model = Model(args.model)
    template = ChatTemplate(
        inspect(args.model).chat_template,
        special_tokens=model.control_texts,
        bos="",
        eos="",
        instructions=lambda use: "",
    )
    use = ToolUse(tuple(tool(i) for i in range(args.tools)), "auto")
    asked = GenerateRequest((ChatPrompt((Message("user", "hi"),), tool_use=use),))
    warm = GenerateRequest(
        (ChatPrompt((Message("user", "hi"),), tool_use=ToolUse((tool(-1),), "auto")),)
    )
    figures: dict[str, list[float]] = {"tokenizer_and_one_tool": [], "first": [], "again": []}
    for _ in range(3):
        answers = Answers(model, template)
        # llguidance's tokenizer is made once for a model, with the first grammar.
        figures["tokenizer_and_one_tool"].append(plan_ms(answers, warm))
        figures["first"].append(plan_ms(answers, asked))
        figures["again"].append(plan_ms(answers, asked))
    result = {name: round(statistics.median(values), 2) for name, values in figures.items()}
    print(json.dumps({"benchmark": "tools_compile", "tools": args.tools, **result}))


if __name__ == "__main__":
    main()
