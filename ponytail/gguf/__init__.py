"""Reads the header of a GGUF file and refuses a bad one before libllama sees it.

Owns what the file format says about a model: metadata, shapes, sizes, KV bytes
per token.  Must not know llama.cpp's library, numpy or any other third-party
package: it runs before the port opens, on the thread that starts the process,
and whoever lists models without loading them uses it too.  Everything here is
re-entrant and may run on any thread.

    source.py    is the path a regular, readable GGUF file at all
    cursor.py    bounded reading, string arrays walked without building objects
    metadata.py  key-value pairs and what type each known key must have
    tensors.py   the tensor table and the size the file must have
    rules.py     what makes libllama abort instead of refusing
    header.py    GGUFHeader, inspect(), ensure_unique_tokens()
    identity.py  content_digest()
    tables.py    value types, tensor types, file types
"""

from ponytail.gguf.header import GGUFHeader, ensure_unique_tokens, inspect
from ponytail.gguf.identity import content_digest
from ponytail.gguf.metadata import Omitted

__all__ = ["GGUFHeader", "Omitted", "content_digest", "ensure_unique_tokens", "inspect"]
