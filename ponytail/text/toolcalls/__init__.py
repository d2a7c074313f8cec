"""Tool calls as model families write them: one file for each, one table that picks."""

from __future__ import annotations

from ponytail.text.toolcalls.cohere import COHERE, COMMAND_R
from ponytail.text.toolcalls.function_gemma import FUNCTION_GEMMA
from ponytail.text.toolcalls.gemma import GEMMA
from ponytail.text.toolcalls.generic import GENERIC, instructions
from ponytail.text.toolcalls.glm import GLM
from ponytail.text.toolcalls.granite import GRANITE
from ponytail.text.toolcalls.harmony import HARMONY
from ponytail.text.toolcalls.hermes import HERMES
from ponytail.text.toolcalls.llama import LLAMA_JSON
from ponytail.text.toolcalls.mistral import MISTRAL, MISTRAL_ARGS
from ponytail.text.toolcalls.phi import PHI
from ponytail.text.toolcalls.pythonic import PYTHONIC
from ponytail.text.toolcalls.qwen_coder import QWEN_CODER
from ponytail.text.toolcalls.seam import CallFormat, CallParser, Trigger
from ponytail.text.toolcalls.sections import DEEPSEEK, DEEPSEEK_V3, KIMI

__all__ = [
    "FORMATS",
    "GENERIC",
    "CallFormat",
    "CallParser",
    "Trigger",
    "by_name",
    "detect",
    "instructions",
]

# A template is of the first family that it shows; those with marks of their own come first.
FORMATS: tuple[CallFormat, ...] = (
    HARMONY,
    DEEPSEEK_V3,
    DEEPSEEK,
    KIMI,
    MISTRAL_ARGS,
    MISTRAL,
    COHERE,
    COMMAND_R,
    FUNCTION_GEMMA,
    GEMMA,
    GRANITE,
    PHI,
    QWEN_CODER,
    GLM,
    HERMES,
    PYTHONIC,
    LLAMA_JSON,
    GENERIC,
)


def detect(template: str | None) -> CallFormat:
    """The format that a chat template's source shows; the generic one if it shows none."""
    if template is None:
        return GENERIC
    return next((one for one in FORMATS if one.is_written_by(template)), GENERIC)


def by_name(name: str) -> CallFormat:
    """Raises KeyError for a name that no format has."""
    return {one.name: one for one in FORMATS}[name]
