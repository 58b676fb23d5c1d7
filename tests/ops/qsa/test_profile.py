"""Reading a model configuration: two schemas, every rule broken alone, and configurations without an indexer."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops.qsa.profile import Profile, read_profile

COMPRESSED: dict[str, Any] = {
    "model_type": "qwen4_exp",
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
}
TOKENWISE: dict[str, Any] = {
    "model_type": "qwen3_next",
    "index_topk": 2048,
    "index_n_heads": 16,
    "index_kv_heads": 1,
    "index_head_dim": 128,
}


def test_compressed_schema() -> None:
    """The released model: 4 heads, 512 blocks of 4 tokens, rotary positions of the main model."""
    found = read_profile(COMPRESSED)
    assert found == Profile("compressed", 4, 1, 128, 2048, 4, "mrope")
    assert found.blocks == 512


def test_tokenwise_schema() -> None:
    """Every token is a block of its own, with plain positions."""
    found = read_profile(TOKENWISE)
    assert found == Profile("tokenwise", 16, 1, 128, 2048, 1, "plain")
    assert found.blocks == 2048


@pytest.mark.parametrize(("budget", "ratio"), [(1024, 2), (2048, 4), (4096, 2), (8192, 4), (16384, 8)])
def test_both_numbers_of_blocks_are_taken(budget: int, ratio: int) -> None:
    """Any budget and ratio that give 512 or 2048 blocks."""
    found = read_profile({**COMPRESSED, "indexer_budget": budget, "indexer_compress_ratio": ratio})
    assert found is not None
    assert found.blocks in (512, 2048)


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"model_type": "qwen3"},
        {"text_config": None},
        {**TOKENWISE, "model_type": "deepseek_v32"},
        {**TOKENWISE, "model_type": None},
        {name: value for name, value in TOKENWISE.items() if name != "model_type"},
        {**TOKENWISE, "index_topk": None},
        {**COMPRESSED, "indexer_n_heads": None},
        {**COMPRESSED, "text_config": {"model_type": "qwen3"}},
    ],
    ids=[
        "none",
        "empty",
        "dense",
        "no-text",
        "another-family",
        "type-none",
        "no-type",
        "no-topk",
        "no-heads",
        "dense-text",
    ],
)
def test_no_indexer_gives_no_profile(config: dict[str, Any] | None) -> None:
    """Where neither schema's leading key is set, or the family is another one, there is nothing to read."""
    assert read_profile(config) is None


def test_a_text_configuration_is_read_in_the_place_of_the_whole() -> None:
    """Multimodal models keep the numbers of their language model one level down."""
    assert read_profile({"model_type": "vision", "text_config": COMPRESSED}) == read_profile(COMPRESSED)


BROKEN = [
    (COMPRESSED, {"indexer_kv_heads": 2}, r"indexer_kv_heads is 2; allowed: 1\. All index heads share one key head"),
    (COMPRESSED, {"indexer_compress_ratio": 1}, r"indexer_compress_ratio is 1; allowed: 2 or more\. A padding row"),
    (COMPRESSED, {"indexer_budget": 2050}, r"indexer_budget is 2050; allowed: a multiple of 4, the ratio"),
    (COMPRESSED, {"indexer_budget": 1024}, r"indexer_budget is 1024; allowed: 2048 or 8192 for a ratio of 4.*not 256"),
    (COMPRESSED, {"indexer_n_heads": 0}, r"indexer_n_heads is 0; allowed: a positive integer"),
    (COMPRESSED, {"indexer_n_heads": -4}, r"indexer_n_heads is -4; allowed: a positive integer"),
    (COMPRESSED, {"indexer_kv_heads": 0}, r"indexer_kv_heads is 0; allowed: a positive integer"),
    (COMPRESSED, {"indexer_head_dim": -1}, r"indexer_head_dim is -1; allowed: a positive integer"),
    (COMPRESSED, {"indexer_budget": 0}, r"indexer_budget is 0; allowed: a positive integer"),
    (COMPRESSED, {"indexer_compress_ratio": 0}, r"indexer_compress_ratio is 0; allowed: a positive integer"),
    (COMPRESSED, {"indexer_head_dim": None}, r"indexer_head_dim is missing; allowed: a positive integer"),
    (COMPRESSED, {"indexer_head_dim": "128"}, r"indexer_head_dim is '128'; allowed: a positive integer"),
    (COMPRESSED, {"indexer_kv_heads": True}, r"indexer_kv_heads is True; allowed: a positive integer"),
    (TOKENWISE, {"index_topk": 1024}, r"index_topk is 1024; allowed: 2048\."),
    (TOKENWISE, {"index_topk": 0}, r"index_topk is 0; allowed: a positive integer"),
    (TOKENWISE, {"index_kv_heads": 4}, r"index_kv_heads is 4; allowed: 1\. All index heads"),
    (TOKENWISE, {"index_n_heads": None}, r"index_n_heads is missing; allowed: a positive integer"),
    (TOKENWISE, {"index_head_dim": 0}, r"index_head_dim is 0; allowed: a positive integer"),
]


@pytest.mark.parametrize(("base", "change", "message"), BROKEN, ids=[f"{c}" for _, c, _ in BROKEN])
def test_each_rule_is_broken_alone(base: dict[str, Any], change: dict[str, Any], message: str) -> None:
    """A single wrong key is refused by its name, with what was given and what is allowed."""
    with pytest.raises(ParameterError, match=message):
        read_profile({**base, **change})


def test_both_schemas_are_ambiguous() -> None:
    """Nothing is preferred silently."""
    with pytest.raises(
        ParameterError, match=r"schema is indexer_n_heads and index_topk; allowed: one of both.*ambiguous"
    ):
        read_profile({**TOKENWISE, **COMPRESSED})


def test_another_familys_keys_beside_compressed_ones_do_not_count() -> None:
    """Token-wise keys of a family that is not Qwen's name another indexer, so nothing is ambiguous."""
    found = read_profile({**TOKENWISE, **COMPRESSED, "model_type": "deepseek"})
    assert found is not None
    assert found.variant == "compressed"


def test_all_reasons_at_once() -> None:
    """Two wrong keys are two reasons of one refusal."""
    with pytest.raises(ParameterError) as refusal:
        read_profile({**COMPRESSED, "indexer_kv_heads": 2, "indexer_budget": 1})
    assert [reason.field for reason in refusal.value.reasons] == ["indexer_kv_heads", "indexer_budget"]


@pytest.mark.parametrize("config", [["qwen"], {"text_config": "qwen"}], ids=["list", "text"])
def test_something_else_than_a_mapping_is_refused(config: Any) -> None:
    """A configuration object, or a path, has to be turned into a mapping first."""
    with pytest.raises(ParameterError, match=r"config is .*; allowed: a mapping of keys to values"):
        read_profile(config)
