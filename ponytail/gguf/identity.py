"""What tells one model file from another without reading all of it.

Owns the digest.  Any thread.
"""

from __future__ import annotations

import hashlib

from ponytail.gguf.header import GGUFHeader

_N_SAMPLES = 64
_SAMPLE_BYTES = 64 << 10
_HEAD_BYTES = 1 << 20


def content_digest(header: GGUFHeader) -> str:
    """Hex digest of the sizes, the start and evenly spaced samples: about 5 MiB are read.

    The same for a copy of the file, another for other weights, another quantisation or
    changed metadata.  Raises OSError.
    """
    digest = hashlib.sha256(f"{header.n_bytes} {header.n_tensors} {header.n_params}".encode())
    with header.path.open("rb") as file:
        digest.update(file.read(_HEAD_BYTES))
        n_bytes = file.seek(0, 2)
        for i in range(_N_SAMPLES):
            file.seek(i * max(0, n_bytes - _SAMPLE_BYTES) // (_N_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
