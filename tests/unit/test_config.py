"""Settings: where they come from, what is refused, and in which words."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponytail.config import DEFAULTS, SETTINGS, Config
from ponytail.errors import BadConfig
from ponytail.setting import parse

MODEL = {"model": "m.gguf"}


def refusal(flags: dict[str, object], env: dict[str, str] | None = None) -> str:
    with pytest.raises(BadConfig) as caught:
        Config.load(MODEL | flags, env or {})
    return str(caught.value)


def test_table_covers_every_field() -> None:
    assert list(SETTINGS) == list(Config.__dataclass_fields__)


def test_defaults_hold_when_nothing_is_said() -> None:
    assert Config.load(MODEL, {}) == Config(model=Path("m.gguf"))


def test_every_default_is_a_value_its_own_rule_accepts() -> None:
    for name, value in DEFAULTS.items():
        if value is not None:
            assert parse(SETTINGS[name], value, "here") == value


def test_flag_beats_variable_beats_default() -> None:
    env = {"PONYTAIL_PORT": "1111", "PONYTAIL_PARALLEL": "3", "PONYTAIL_MODEL": "env.gguf"}
    config = Config.load({"port": "2222"}, env)
    assert (config.port, config.parallel, config.step_ms) == (2222, 3, 250)
    assert config.model == Path("env.gguf")


def test_none_and_empty_variables_count_as_not_given() -> None:
    config = Config.load(MODEL | {"port": None}, {"PONYTAIL_PORT": "", "PONYTAIL_ALIAS": ""})
    assert config.port == 8080
    assert config.alias is None


def test_every_setting_can_come_from_its_variable(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("x")
    special = {"chat_template_file": str(template), "threads": "3", "ubatch_size": "7"}
    words = {
        "path": "some/path",
        "text": "word",
        "integer": "512",
        "number": "2.5",
        "switch": "yes",
        "size": "3GiB",
        "amount": "25%",
    }
    special |= {"batch_size": "256", "parallel": "16"}
    for name, setting in SETTINGS.items():
        raw = special.get(name) or words.get(setting.kind) or setting.choices[-1]
        env = {setting.variable: raw}
        if name == "kv_disk":
            env["PONYTAIL_KV_DIR"] = "some/path"
        config = Config.load(MODEL if name != "model" else {}, env)
        assert getattr(config, name) == parse(setting, raw, "here"), name
        assert getattr(config, name) != DEFAULTS.get(name) or setting.kind == "choice", name


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("ctx_size", "auto", None),
        ("ctx_size", "0", None),
        ("ctx_size", 0, None),
        ("ctx_size", "16", 16),
        ("threads", "auto", None),
        ("port", "0", 0),
        ("parallel", " 4 ", 4),
        ("keep_alive_interval", "0.5", 0.5),
        ("keep_alive_interval", 3, 3.0),
        ("mlock", "Yes", True),
        ("mlock", True, True),
        ("flash_attn", "off", "off"),
        ("model", Path("a b.gguf"), Path("a b.gguf")),
    ],
)
def test_spellings(name: str, raw: object, value: object) -> None:
    assert getattr(Config.load(MODEL | {name: raw}, {}), name) == value


def test_no_mmap_variable_turns_mapping_off() -> None:
    assert not Config.load(MODEL, {"PONYTAIL_NO_MMAP": "1"}).mmap
    assert Config.load(MODEL, {"PONYTAIL_NO_MMAP": "0"}).mmap
    assert Config.load(MODEL | {"mmap": True}, {"PONYTAIL_NO_MMAP": "1"}).mmap


@pytest.mark.parametrize(
    ("name", "raw", "problem"),
    [
        ("port", "70000", "is out of range: 0 to 65535"),
        ("port", "-1", "is out of range: 0 to 65535"),
        ("port", "http", "is not a whole number: 0 to 65535"),
        ("port", "80.5", "is not a whole number"),
        ("port", 80.5, "is not a whole number"),
        ("port", True, "is not a whole number"),
        ("ctx_size", "15", "is out of range: 16 to"),
        ("ctx_size", False, "is not a whole number"),
        ("threads", "0", "is out of range: 1 to 512, or auto"),
        ("parallel", "257", "is out of range: 0 to 256"),
        ("keep_alive_interval", "nan", "is out of range: 0.1 to 3600"),
        ("keep_alive_interval", "soon", "is not a number"),
        ("step_ms", float("inf"), "is not a whole number"),
        ("flash_attn", "maybe", "is not one of auto, on, off"),
        ("cache_type_k", "q3_k", "is not one of f32, f16"),
        ("mlock", "perhaps", "is not one of 1, true"),
        ("alias", "", "is not a text"),
        ("uds", "", "is not a path"),
        ("model", 7, "is not a path"),
        ("chat_template_file", "/nowhere/t.jinja", "cannot be read: No such file"),
        ("chat_template_file", "a\0b", "cannot be read: embedded null byte"),
    ],
)
def test_refusal_names_flag_source_value_and_range(name: str, raw: object, problem: str) -> None:
    message = refusal({name: raw})
    assert message.startswith(f"{SETTINGS[name].flag}: {raw!r} (from the command line) ")
    assert problem in message


def test_refusal_names_the_variable() -> None:
    message = refusal({}, {"PONYTAIL_CTX_SIZE": "8"})
    assert message == (
        "--ctx-size: '8' (from PONYTAIL_CTX_SIZE) is out of range: 16 to 16777216, or auto or 0"
    )


def test_refusal_stays_short_for_long_values() -> None:
    assert len(refusal({"port": "9" * 10_000})) < 200


@given(raw=st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.binary()))
def test_any_value_is_taken_or_refused_by_name(raw: object) -> None:
    for setting in SETTINGS.values():
        refused: BadConfig | None = None
        try:
            parse(setting, raw, "here")
        except BadConfig as error:
            refused = error
        if refused is not None:
            assert refused.param == setting.name
            assert "(from here)" in str(refused)


def test_unknown_keyword_is_refused_with_a_guess() -> None:
    assert refusal({"ctx_sze": 1}) == "unknown setting 'ctx_sze' (did you mean ctx_size?)"


def test_missing_model_says_how_to_give_one() -> None:
    with pytest.raises(BadConfig, match=r"ponytail --model model\.gguf \(or PONYTAIL_MODEL\)"):
        Config.load({}, {})


def test_source_of_keyword_arguments_can_be_named() -> None:
    with pytest.raises(BadConfig, match=r"\(from LLM\(\)\)"):
        Config.load(MODEL | {"port": -5}, {}, source="LLM()")


def test_unknown_variables_get_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    env = {"PONYTAIL_PROT": "1", "PONYTAIL_ZZZZ": "2", "PORT": "3"}
    with caplog.at_level(logging.WARNING, "ponytail"):
        assert Config.load(MODEL, env).port == 8080
    (record,) = caplog.records
    assert "PONYTAIL_PROT (did you mean PONYTAIL_PORT?), PONYTAIL_ZZZZ" in record.getMessage()


def test_ubatch_over_batch_is_refused_when_asked_for() -> None:
    message = refusal({"ubatch_size": "512"}, {"PONYTAIL_BATCH_SIZE": "256"})
    assert "--ubatch-size (from the command line) is 512" in message
    assert "--batch-size (from PONYTAIL_BATCH_SIZE) of 256" in message


def test_one_batch_size_alone_moves_the_other_with_it() -> None:
    def load(flags: dict[str, object]) -> Config:
        return Config.load(MODEL | flags, {})

    assert load({"ubatch_size": "4096"}).batch_size == 4096
    assert load({"batch_size": "128"}).ubatch_size == 128
    assert load({"batch_size": "4096"}).ubatch_size == 512


def test_small_batch_brings_the_default_ubatch_down() -> None:
    config = Config.load(MODEL | {"batch_size": "256"}, {})
    assert (config.batch_size, config.ubatch_size) == (256, 256)
    assert Config.load(MODEL | {"batch_size": "4096"}, {}).ubatch_size == 512


@pytest.mark.parametrize("other", [{"host": "::"}, {"port": "9"}])
def test_uds_excludes_host_and_port(other: dict[str, object]) -> None:
    message = refusal({"uds": "s.sock"} | other)
    assert message.startswith(f"--uds (from the command line) excludes --{next(iter(other))} ")


def test_quantised_v_cache_needs_flash_attention() -> None:
    message = refusal({"cache_type_v": "q8_0"}, {"PONYTAIL_FLASH_ATTN": "off"})
    assert "--cache-type-v (from the command line) is q8_0" in message
    assert "--flash-attn (from PONYTAIL_FLASH_ATTN) is off" in message
    for fine in ({"cache_type_v": "q8_0"}, {"cache_type_k": "q8_0", "flash_attn": "off"}):
        Config.load(MODEL | fine, {})


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512MiB", 512 << 20),
        ("2g", 2 << 30),
        ("1.5 GiB", 3 << 29),
        ("2GB", 2_000_000_000),
        ("3kb", 3000),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, n_bytes: int) -> None:
    config = Config.load(MODEL | {"kv_ram": text, "kv_dir": "d", "kv_disk": text}, {})
    assert config.kv_ram is not None
    assert (config.kv_ram.of(10**12), config.kv_disk) == (n_bytes, n_bytes)


def test_a_share_is_of_what_is_available() -> None:
    config = Config.load(MODEL | {"kv_memory": "25%"}, {})
    assert config.kv_memory is not None
    assert config.kv_memory.of(1000) == 250


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"kv_ram": "lots"}, "--kv-ram: 'lots' (from the command line) is not bytes, as 500MiB"),
        ({"kv_memory": "150%"}, "is more than there is"),
        ({"kv_memory": "9" * 400}, "is not bytes, as 500MiB"),
        ({"kv_memory": "0.5"}, "is not whole bytes; it takes bytes, as 500MiB"),
        ({"kv_dir": "d", "kv_disk": "10%"}, "--kv-disk: '10%' (from the command line) is not"),
        ({"kv_cells": "100"}, "--kv-cells: '100' (from the command line) is out of range: 256"),
        ({"kv_cells": "4096", "kv_memory": "1G"}, "--kv-cells (from the command line) excludes"),
        ({"kv_disk": "1G"}, "--kv-disk (from the command line) needs --kv-dir"),
        ({"kv_layout": "both"}, "is not one of auto, shared, split"),
    ],
)
def test_wrong_kv_settings_are_named(flags: dict[str, str], words: str) -> None:
    with pytest.raises(BadConfig) as caught:
        Config.load(MODEL | flags, {})
    assert words in str(caught.value)
