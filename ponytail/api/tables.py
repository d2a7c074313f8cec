"""Every route's parameter rows, of all dialects, in the order people read them.

Owns the merge and nothing else; docs/api.md and /openapi.json are made from it.  Must
not know what a row means.  Pure; any thread.
"""

from __future__ import annotations

from ponytail.api import embeddings, llamacpp_fields, openai_fields
from ponytail.api.fields import Fields

_DIALECTS = (openai_fields, embeddings, llamacpp_fields)

TABLES: dict[str, Fields] = {
    path: table for dialect in _DIALECTS for path, table in dialect.TABLES.items()
}
