"""Tool calls as model families write them: one file for each, one table that picks."""

from __future__ import annotations

from ponytail.text.toolcalls.generic import GENERIC, instructions
from ponytail.text.toolcalls.granite import GRANITE
from ponytail.text.toolcalls.hermes import HERMES
from ponytail.text.toolcalls.mistral import MISTRAL, MISTRAL_ARGS
from ponytail.text.toolcalls.phi import PHI
from ponytail.text.toolcalls.seam import CallFormat, CallParser, Trigger

__all__ = ["FORMATS", "CallFormat", "CallParser", "Trigger", "by_name", "detect", "instructions"]

FORMATS: tuple[CallFormat, ...] = (MISTRAL_ARGS, MISTRAL, GRANITE, PHI, HERMES, GENERIC)


def detect(template: str | None) -> CallFormat:
    """The format that a chat template's source shows; the generic one if it shows none."""
    if template is None:
        return GENERIC
    return next((one for one in FORMATS if one.is_written_by(template)), GENERIC)


def by_name(name: str) -> CallFormat:
    """Raises KeyError for a name that no format has."""
    return {one.name: one for one in FORMATS}[name]
