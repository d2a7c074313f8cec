"""Requests to llama.cpp's routes, as parsed, for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ponytail.api.dialect import Limits
from ponytail.api.llamacpp import Completion, Infill
from ponytail.errors import PonytailError
from ponytail.types import GenerateRequest

LIMITS = Limits(n_vocab=1000, n_ctx=512)


def completion(**fields: Any) -> GenerateRequest:
    return Completion().parse({"prompt": "hi", **fields}, LIMITS)


def infill(**fields: Any) -> GenerateRequest:
    return Infill().parse({"input_prefix": "a", "input_suffix": "b", **fields}, LIMITS)


def refusal(parse: Callable[..., Any], *args: Any, **fields: Any) -> PonytailError:
    with pytest.raises(PonytailError) as caught:
        parse(*args, **fields)
    return caught.value
