"""Imports go down only, third-party packages stay where they belong, names say what things do."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ponytail"
FILES = sorted(PACKAGE.rglob("*.py"))

# Which parts of ponytail each part may import, besides itself.
BOTTOM = {"errors", "types", "config", "setting", "machine", "sizing", "telemetry", "gguf"}
INTERNAL: dict[str, set[str]] = {
    "errors": set(),
    "telemetry": set(),
    "machine": set(),
    "types": {"errors"},
    "setting": {"errors"},
    "config": {"errors", "setting"},
    "sizing": {"errors", "setting"},
    "gguf": {"errors"},
    "text": BOTTOM,
    "llama": BOTTOM,
    "engine": BOTTOM | {"text"},
    "api": BOTTOM | {"text"},
    "delivery": BOTTOM | {"engine"},
    "prompts": BOTTOM | {"text", "llama"},
    "runtime": BOTTOM | {"text", "llama", "engine"},
    "embeddings": BOTTOM | {"engine", "runtime"},
    "jobs": BOTTOM | {"text", "llama", "engine", "prompts", "runtime"},
    "collected": BOTTOM | {"delivery"},
    "llm": BOTTOM
    | {"text", "llama", "engine", "api", "delivery", "prompts", "runtime", "jobs", "collected"}
    | {"embeddings"},
    "server": BOTTOM | {"text", "engine", "api", "llm"},
    "cli": BOTTOM | {"text", "llama", "engine", "api", "llm", "server"},
    "__main__": {"cli"},
    "__init__": {"llm"},
}

THIRD_PARTY: dict[str, set[str]] = {
    "types": {"msgspec"},
    "text": {"jinja2", "markupsafe", "msgspec", "llguidance"},  # markupsafe is part of jinja2
    "llama": {"llama_cpp", "numpy"},
    "engine": {"msgspec"},
    "api": {"msgspec"},
    "llm": {"msgspec"},
    "prompts": {"msgspec"},
    "jobs": {"msgspec"},
    "collected": {"msgspec"},
    "server": {"starlette", "uvicorn", "msgspec", "prometheus_client"},
    "cli": {"click"},
}

# What would break a part's promise although Python brings it along.
FORBIDDEN_STDLIB: dict[str, set[str]] = {
    "engine": {"asyncio", "ctypes", "http", "json", "socket"},
    "api": {"asyncio", "ctypes", "socket", "threading"},
    "text": {"asyncio", "ctypes", "socket"},
    "llm": {"ctypes", "http", "socket"},
    "server": {"ctypes"},
    "cli": {"ctypes"},
}

MAX_LINES = 400
VAGUE = {"util", "utils", "helper", "helpers", "base", "mixin", "manager", "common", "misc"}


def part_of(file: Path) -> str:
    """The package or top-level module a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file, as an absolute dotted name."""
    package = ("ponytail", *file.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*origin, *([node.module] if node.module else [])))
            if module == "ponytail":
                yield from (f"ponytail.{alias.name}" for alias in node.names)
            else:
                yield module
        elif isinstance(node, ast.Call):
            yield from _dynamic(node)


def _dynamic(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0] if call.args else None
    if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
        yield str(first.value)


def internal(module: str) -> str | None:
    """The part of ponytail that `module` belongs to, None when there is nothing to judge."""
    words = module.split(".")
    if words[0] != "ponytail":
        return None
    if len(words) == 1 or words[1] == "__version__":
        return None  # the package itself holds the version and imports nothing
    return {"LLM": "llm"}.get(words[1], words[1])


def name_of(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def test_every_part_has_its_place() -> None:
    parts = {part_of(file) for file in FILES}
    assert parts <= set(INTERNAL), "say in this test what the new part may import"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_go_down_only(file: Path) -> None:
    part = part_of(file)
    used = {target for module in imports(file) if (target := internal(module)) is not None}
    assert used - {part} <= INTERNAL[part]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_third_party_packages_stay_in_their_layer(file: Path) -> None:
    part = part_of(file)
    tops = {module.split(".")[0] for module in imports(file)} - {"ponytail"}
    assert tops - sys.stdlib_module_names <= THIRD_PARTY.get(part, set())
    assert not tops & FORBIDDEN_STDLIB.get(part, set())


def test_only_llama_touches_ctypes_and_the_binding() -> None:
    users = {
        part_of(file)
        for file in FILES
        for module in imports(file)
        if module.split(".")[0] in ("ctypes", "llama_cpp")
    }
    assert users <= {"llama"}


def test_engine_never_reaches_llama_through_others() -> None:
    reached, todo = set(), ["engine"]
    while todo:
        part = todo.pop()
        reached.add(part)
        todo.extend(INTERNAL[part] - reached)
    assert not reached & {"llama", "api", "server", "cli", "llm"}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_files_stay_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) < MAX_LINES


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_modules_say_what_they_own(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert not tree.body or ast.get_docstring(tree)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_names_say_what_things_do(file: Path) -> None:
    names = [file.stem, file.parent.name]
    names += [n.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ClassDef)]
    words = {w.lower() for n in names for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", n)}
    assert not words & VAGUE


def test_the_reader_of_imports_sees_all_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    file = tmp_path / "engine" / "x.py"
    file.parent.mkdir()
    file.write_text(
        "import a.b, c\nfrom . import near\nfrom ..llama import capi\nfrom ponytail import llm\n"
        "def f():\n    import d\n    import_module('ponytail.cli')\n"
    )
    assert set(imports(file)) == {
        "a.b",
        "c",
        "d",
        "ponytail.engine",
        "ponytail.llama",
        "ponytail.llm",
        "ponytail.cli",
    }
