"""How the pre-check says no."""

from __future__ import annotations

from pathlib import Path

import pytest

from ponytail import gguf
from ponytail.errors import BadModelFile


def refusal(path: Path) -> str:
    """The one line with which `path` is refused."""
    with pytest.raises(BadModelFile) as caught:
        gguf.inspect(path)
    message = str(caught.value)
    assert "\n" not in message
    return message
