"""/openapi.json and docs/api.md say what the parser does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ponytail.api import support_table
from ponytail.api.dialect import Limits
from ponytail.api.fields import Field, Integer, Number
from ponytail.api.openai_messages import ROLES
from ponytail.api.openapi import encode_openapi, openapi
from ponytail.api.tables import TABLES
from ponytail.errors import InvalidRequest
from ponytail.types import Sampling

LIMITS = Limits(n_vocab=1000, n_ctx=512)
METHODS = ("get", "post")
DOCUMENT = openapi()
ROUTES = {
    *TABLES,
    "/v1/models",
    "/v1/models/{id}",
    "/health",
    "/metrics",
    "/v1/cache",
    "/openapi.json",
}


def body_schema(path: str) -> dict[str, Any]:
    content = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]
    return resolve(content["application/json"]["schema"]["$ref"])


def resolve(ref: str) -> dict[str, Any]:
    value: Any = DOCUMENT
    for step in ref.removeprefix("#/").split("/"):
        value = value[step]
    assert isinstance(value, dict)
    return value


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    children = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        for child in children:
            yield from walk(child)


def test_every_route_is_described() -> None:
    assert DOCUMENT["openapi"].startswith("3.1")
    assert set(DOCUMENT["paths"]) == ROUTES
    operations = [o for path in DOCUMENT["paths"].values() for m, o in path.items() if m in METHODS]
    assert len({o["operationId"] for o in operations}) == len(operations) == len(ROUTES)
    assert all("200" in o["responses"] and o["summary"] for o in operations)


def test_every_reference_leads_somewhere() -> None:
    refs = [node["$ref"] for node in walk(DOCUMENT) if "$ref" in node]
    assert len(refs) > 20
    for ref in refs:
        resolve(ref)


@pytest.mark.parametrize("path", TABLES)
def test_every_parameter_is_described_with_its_effect(path: str) -> None:
    schema = body_schema(path)
    names = {name for row in TABLES[path] for name in (row.name, *row.aliases)}
    assert set(schema["properties"]) == names
    assert schema["additionalProperties"] is False
    for row in TABLES[path]:
        shown = schema["properties"][row.name]
        assert (shown["description"], shown["x-ponytail-effect"]) == (row.doc, row.effect)
        assert (row.name in schema.get("required", [])) == row.required


@pytest.mark.parametrize("path", TABLES)
def test_posts_say_how_they_fail(path: str) -> None:
    responses = DOCUMENT["paths"][path]["post"]["responses"]
    assert {"400", "413", "415", "429", "500", "503"} <= set(responses)


NUMBERS = [
    pytest.param(path, row, id=f"{path}-{row.name}")
    for path, table in TABLES.items()
    for row in table
    if isinstance(row.kind, Number | Integer)
]


@pytest.mark.parametrize(("path", "row"), NUMBERS)
def test_the_described_bounds_are_the_enforced_ones(path: str, row: Field) -> None:
    shown = body_schema(path)["properties"][row.name]
    bounds = shown["anyOf"][0]
    step = 1 if bounds["type"] == "integer" else 1e-6
    row.kind.read(bounds["maximum"], row.name, LIMITS)
    with pytest.raises(InvalidRequest):
        row.kind.read(bounds["maximum"] + step, row.name, LIMITS)
    low = bounds.get("minimum", bounds.get("exclusiveMinimum"))
    inside, outside = (low, low - step) if "minimum" in bounds else (low + step, low)
    row.kind.read(inside, row.name, LIMITS)
    with pytest.raises(InvalidRequest):
        row.kind.read(outside, row.name, LIMITS)


def test_defaults_are_those_of_this_server() -> None:
    document = openapi("9.9.9", Sampling(temperature=0.1, seed=5))
    shown = document["components"]["schemas"]["CreateChatCompletionRequest"]["properties"]
    assert document["info"]["version"] == "9.9.9"
    assert (shown["temperature"]["default"], shown["seed"]["default"]) == (0.1, 5)
    assert shown["top_k"]["default"] == Sampling().top_k
    assert (
        "default"
        not in openapi()["components"]["schemas"]["CreateChatCompletionRequest"]["properties"][
            "seed"
        ]
    )


def test_it_is_json() -> None:
    assert json.loads(encode_openapi())["paths"].keys() == ROUTES


def test_docs_api_md_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "api.md"
    assert page.read_text() == support_table.render(), (
        "run: python -m ponytail.api.support_table > docs/api.md"
    )


def test_docs_name_every_parameter() -> None:
    page = support_table.render()
    for path, table in TABLES.items():
        _, _, rest = page.partition(f"\n## {path}\n")
        section = rest.partition("\n## ")[0]
        for row in table:
            (line,) = [one for one in section.splitlines() if one.startswith(f"| `{row.name}`")]
            assert row.effect in line
            assert all(f"`{alias}`" in line for alias in row.aliases)
            # A pipe in a cell would shift the columns.
            assert line.count("|") == 6
    for title, table in support_table.NESTED.items():
        _, _, section = page.partition(f"\n## Members of {title}\n")
        assert all(f"| `{row.name}`" in section for row in table)


def test_every_role_is_described() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    told = schemas["Message"]["anyOf"][0]
    turns = (told, schemas["AssistantMessage"], schemas["ToolMessage"])
    assert {role for turn in turns for role in turn["properties"]["role"]["enum"]} == set(ROLES)
