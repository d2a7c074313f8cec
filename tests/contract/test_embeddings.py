"""/v1/embeddings and /v1/rerank with the official client (P29, P59)."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse

from ponytail import LLM
from ponytail.errors import InvalidRequest
from ponytail.llama.capi import lib
from tests.contract.plain_llama import N_CTX, computed, floats
from tests.contract.replies import HI, strict
from tests.real.server import Server
from tests.synthetic import write_gguf

pytestmark = pytest.mark.real

TEXTS = ["The cat sat on the mat.", "x", "Der Kater saß auf der Matte. 🐈", "quantum " * 300]


def vectors(client: Any, texts: Any, **options: Any) -> Any:
    reply = client.embeddings.create(model="m", input=texts, **options)
    assert [one.index for one in reply.data] == list(range(len(reply.data)))
    return np.array([one.embedding for one in reply.data], dtype=np.float32)


def alike(a: Any, b: Any) -> bool:
    """The same vectors but for rounding, which is another in batches of another size."""
    return bool(((a * b).sum(axis=1) > 0.99999).all()) and float(np.abs(a - b).max()) < 1e-3


def test_the_clients_default_form_has_the_same_numbers_as_plain_ones(client):
    """The package asks for base64 unless told otherwise, and decodes it itself."""
    default = client.embeddings.create(model="m", input=TEXTS[0])
    strict(CreateEmbeddingResponse, default)
    plain = client.embeddings.create(model="m", input=TEXTS[0], encoding_format="float")
    raw = client.with_raw_response.embeddings.create(
        model="m", input=TEXTS[0], encoding_format="base64"
    )
    text = raw.http_response.json()["data"][0]["embedding"]
    n = len(default.data[0].embedding)
    assert n == 576
    assert list(struct.unpack(f"<{n}f", base64.b64decode(text))) == plain.data[0].embedding
    assert default.data[0].embedding == plain.data[0].embedding
    assert np.linalg.norm(plain.data[0].embedding) == pytest.approx(1, abs=1e-5)


def test_batches_and_parallel_calls_equal_single_ones(client):
    alone = np.concatenate([vectors(client, text) for text in TEXTS])
    together = vectors(client, TEXTS)
    with ThreadPoolExecutor(8) as pool:
        apart = np.concatenate(list(pool.map(lambda text: vectors(client, text), TEXTS)))
    assert alike(together, alone)
    assert alike(apart, alone)


def test_vectors_are_right_while_choices_run(client):
    alone = vectors(client, TEXTS)
    stream = client.chat.completions.create(
        model="m", messages=HI, stream=True, max_tokens=120, logit_bias={"2": -100, "0": -100}
    )
    first = next(iter(stream))
    assert first.choices
    beside = vectors(client, TEXTS)
    n_chunks = sum(1 for _ in stream)
    assert n_chunks > 20
    assert alike(beside, alone)


@pytest.mark.parametrize("n", [1, 511, 512, 513, N_CTX])
def test_inputs_up_to_the_window(client, n):
    reply = client.embeddings.create(model="m", input=[[1000 + i % 7 for i in range(n)]])
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == n


def test_a_mixed_batch_of_all_lengths(client):
    lengths = [1, 511, 700, 5]
    batch = [[1000 + i % 7 for i in range(n)] for n in lengths]
    together = vectors(client, batch)
    alone = np.concatenate([vectors(client, [ids]) for ids in batch])
    assert alike(together, alone)


def test_two_thousand_and_forty_eight_inputs(client):
    reply = client.embeddings.create(model="m", input=["a"] * 2048)
    assert len(reply.data) == 2048
    assert len({tuple(one.embedding) for one in reply.data[:64]}) == 1


def test_a_text_and_its_token_ids_are_the_same(client):
    ids = client.post("/tokenize", body={"content": TEXTS[0]}, cast_to=object)["tokens"]
    assert np.abs(vectors(client, ids) - vectors(client, TEXTS[0])).max() < 1e-6


@pytest.mark.parametrize(
    ("bad", "param", "words"),
    [
        (["a", ""], "input[1]", "non-empty"),
        ("", "input", "non-empty"),
        ([], "input", "list"),
        (["a", 5], "input[1]", "non-empty"),
        ([[1, 10**6]], "input[0][1]", "token id"),
        (["a", [1] * (N_CTX + 1)], "input[1]", f"{N_CTX} tokens; input[1] has {N_CTX + 1}"),
        (["a"] * 2049, "input", "2048"),
    ],
)
def test_one_bad_item_is_named(client, bad, param, words):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="m", input=bad)
    assert caught.value.param == param
    assert words in caught.value.message


def test_fewer_dimensions_have_length_one_again(client):
    (whole,) = vectors(client, TEXTS[0])
    (first,) = vectors(client, TEXTS[0], dimensions=64)
    assert len(first) == 64
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-5)
    assert first == pytest.approx(whole[:64] / np.linalg.norm(whole[:64]), abs=1e-6)


@pytest.mark.parametrize(
    "fields", [{"dimensions": 577}, {"dimensions": 0}, {"encoding_format": "xyz"}]
)
def test_forms_that_cannot_be_are_refused(client, fields):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="m", input="a", **fields)
    assert caught.value.param in fields


def independent(ids: list[int]) -> Any:
    """llama.cpp's own mean of the tokens' vectors, in one call."""
    with computed(ids, embeddings=True, pooling_type=1) as (_, context):
        found = floats(lib.llama_get_embeddings_seq(context, 0), 576)
    return found / np.linalg.norm(found)


@pytest.mark.parametrize("text", [TEXTS[0], "quantum " * 700])
def test_vectors_are_llama_cpps_own(client, text):
    """The long one is read in several pieces here and in one there."""
    ids = client.post("/tokenize", body={"content": text}, cast_to=object)["tokens"]
    (mine,) = vectors(client, text)
    assert float(mine @ independent(ids)) > 1 - 1e-4


def test_a_chat_model_does_not_rank(client):
    with pytest.raises(openai.BadRequestError, match="head that ranks"):
        client.post("/rerank", body={"query": "a", "documents": ["b"]}, cast_to=object)


# -- encoders, in process ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_gguf(tmp_path_factory.mktemp("models") / "bert.gguf", arch="bert", n_layers=2)
    with LLM(path) as llm:
        yield llm


def test_an_encoder_embeds_by_itself_and_says_that_it_cannot_generate(encoder):
    texts = ["a cat", "x", "several words in a row " * 100]
    together = np.array(encoder.embed(texts))
    alone = np.array([encoder.embed([text])[0] for text in texts])
    assert np.abs(together - alone).max() < 1e-5
    with pytest.raises(InvalidRequest, match="cannot generate"):
        encoder.chat(HI)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_is_what_was_asked(tmp_path, pooling):
    path = write_gguf(tmp_path / "model.gguf", n_layers=2)
    ids = list(range(1000, 1600))
    with LLM(path, ctx_size=1024, pooling=pooling) as llm:
        (whole,) = llm.embed([ids])
        (other,) = llm.embed([[*ids[:-1], 5]])
        info = llm.info()["embeddings"]
    assert info["pooling"] == pooling
    # The first token of a decoder knows nothing of the last.
    assert (whole == other) is (pooling == "cls")


def test_rankers_order_documents(tmp_path):
    overrides = {"bert.pooling_type": 4}
    path = write_gguf(tmp_path / "ranker.gguf", arch="bert", n_layers=2, overrides=overrides)
    documents = ["The cat", "a dog", "some of the fish"]
    with LLM(path) as llm:
        together = llm.rerank("cat", documents)
        assert together == pytest.approx([llm.rerank("cat", [d])[0] for d in documents], abs=1e-4)
        with pytest.raises(InvalidRequest, match="ranks"):
            llm.embed(["a"])


def test_what_a_client_gives_up_is_read_no_further(server: Server, client):
    """Two hundred long texts would take minutes; after the hang-up they take nothing."""
    gone = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=0.3)
    with pytest.raises(openai.APITimeoutError):
        gone.embeddings.create(model="m", input=["word " * 1500] * 200)
    assert vectors(client, "after").shape == (1, 576)
    # Nothing else is asked of the server: once what ran is over, its counter stands still.
    before = n_read(client)
    for _ in range(100):
        vectors(client, "a")
        if n_read(client) - before < 3:
            break
        before = n_read(client)
    else:
        pytest.fail("the server still reads for a client that is gone")


def n_read(client: Any) -> int:
    """Tokens that were read for vectors since the start."""
    text = httpx.get(str(client.base_url).replace("/v1/", "/metrics")).text
    (line,) = re.findall(r"^ponytail_embedding_tokens_total (\S+)$", text, re.MULTILINE)
    return int(float(line))
