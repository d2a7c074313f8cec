"""The schema of a tool's arguments, made fit for a mask.

Owns what is given up for a tool whose schema is odd: better a call with looser arguments than
no call.  Pure.
"""

from __future__ import annotations

from typing import Any

from ponytail.text.grammar.schema import Notes, prepared, wrong
from ponytail.types import Tool


def tool_schema(tool: Tool) -> tuple[dict[str, Any], Notes]:
    """(schema, a sentence for everything in it that will not be kept to).

    Raises InvalidRequest for a tool that is strict.
    """
    path = f"{tool.path}.parameters"
    notes: Notes = []
    schema = tool.parameters
    if schema.get("type", "object") != "object":
        if tool.is_strict:
            raise wrong(f"{path}.type", "the arguments of a tool are an object.")
        notes.append(f"{path}.type is not kept to: the arguments of a tool are an object.")
        schema = {}
    fit = prepared({"type": "object", **schema}, path, None if tool.is_strict else notes)
    return (fit if isinstance(fit, dict) else {"type": "object"}), notes
