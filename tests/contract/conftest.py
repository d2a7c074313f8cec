"""One real server, with everything on, for the official client; and one whose model thinks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.real.server import Server, running
from tests.synthetic import smollm2_path

# SmolLM2 does not think; a template that opens a thought makes it write as if it did.
THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n"
    "{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    flags = ("-np", "4", "-c", "2048", "--alias", "smol", "--embeddings")
    with running(smollm2_path(), *flags) as server:
        yield server


@pytest.fixture(scope="package")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    template: Path = tmp_path_factory.mktemp("templates") / "thinks.jinja"
    template.write_text(THINKING_TEMPLATE)
    flags = ("-np", "2", "-c", "1024", "--chat-template-file", str(template))
    with running(smollm2_path(), *flags) as server:
        yield server


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture
def thinking_client(thinker: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0, timeout=120)
