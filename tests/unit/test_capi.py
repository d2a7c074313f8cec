"""A binding that is not the pinned one is refused with a sentence, before anything is loaded."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from ponytail.errors import BindingMismatch
from ponytail.llama import capi

NAMES = (
    "llama_model_default_params",
    "llama_context_default_params",
    "llama_sampler_chain_default_params",
)


def binding(**changes: Any) -> SimpleNamespace:
    """The installed binding with some members replaced."""
    real = {name: getattr(capi.lib, name) for name in NAMES}
    return SimpleNamespace(**{**real, "llama_batch": capi.lib.llama_batch, **changes})


def changed(function: str, **values: Any) -> dict[str, Any]:
    def defaults() -> Any:
        params = getattr(capi.lib, function)()
        for name, value in values.items():
            setattr(params, name, value)
        return params

    return {function: defaults}


def test_the_installed_binding_is_the_pinned_one():
    capi.check_binding()


def test_another_version_is_refused_with_the_command_that_mends_it():
    with pytest.raises(BindingMismatch, match=r"0\.3\.99 is installed.*pip install"):
        capi.check_binding(version="0.3.99")


@pytest.mark.parametrize(
    ("function", "values"),
    [
        ("llama_context_default_params", {"n_batch": 1024}),
        ("llama_context_default_params", {"kv_unified": True}),
        ("llama_model_default_params", {"n_gpu_layers": 999}),
    ],
)
def test_other_defaults_are_refused_by_name(function, values):
    (name,) = values
    with pytest.raises(BindingMismatch, match=name):
        capi.check_binding(binding(**changed(function, **values)))


def test_other_struct_sizes_are_refused():
    class Batch(ctypes.Structure):
        _fields_ = (("n_tokens", ctypes.c_int32),)

    with pytest.raises(BindingMismatch, match="llama_batch: size is 4, expected 56"):
        capi.check_binding(binding(llama_batch=Batch))
