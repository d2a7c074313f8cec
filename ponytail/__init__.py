"""ponytail: one GGUF file in, a fast API out.

`from ponytail import LLM` gives the engine in process; `python -m ponytail` serves it.
Names load lazily so that the command line can open its port before the heavy imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ponytail.llm import LLM

__all__ = ["LLM", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from ponytail.llm import LLM

        return LLM
    raise AttributeError(f"module 'ponytail' has no attribute {name!r}")
