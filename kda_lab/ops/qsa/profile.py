"""Which sparse-attention indexer a model configuration describes: one of two schemas, or none.

`compressed` scores one key a block of tokens; `tokenwise` scores every token. The two schemas exclude each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kda_lab.errors import ParameterError, Reason

ROOM = "qsa.profile"
COMPRESSED = {
    "heads": "indexer_n_heads",
    "kv_heads": "indexer_kv_heads",
    "head_dim": "indexer_head_dim",
    "budget_tokens": "indexer_budget",
    "ratio": "indexer_compress_ratio",
}
"""Field of a profile to its key in a configuration of the compressed schema."""
TOKENWISE = {
    "heads": "index_n_heads",
    "kv_heads": "index_kv_heads",
    "head_dim": "index_head_dim",
    "budget_tokens": "index_topk",
}
"""The same of the token-wise schema, whose ratio is 1."""
MODEL_PREFIX = "qwen"
"""Of a `model_type` that may be token-wise: other families use the same keys for another indexer."""
BLOCK_COUNTS = (512, 2048)
TOKENWISE_BUDGET_TOKENS = 2048


@dataclass(frozen=True)
class Profile:
    """The indexer of a model, whatever its configuration calls the numbers."""

    variant: Literal["compressed", "tokenwise"]
    heads: int
    """Index query heads."""
    kv_heads: int
    """Index key heads: always 1."""
    head_dim: int
    budget_tokens: int
    """Tokens that a query selects at most, its incomplete tail aside."""
    ratio: int
    """Tokens a block; 1 where every token is scored."""
    rope: Literal["mrope", "plain"]
    """Whose positions turn queries and keys: the main model's, or plain ones, one a token."""

    @property
    def blocks(self) -> int:
        """Blocks that a query selects."""
        return self.budget_tokens // self.ratio


def read_profile(config: Mapping[str, Any] | None) -> Profile | None:
    """The indexer that a model configuration describes; None where it describes none.

    Args:
        config: a model's `config.json` as a mapping. Where it has a `text_config`, only that is read.

    Raises:
        ParameterError: both schemas are present, or one is incomplete or breaks a rule; every reason is named.
    """
    text = _text_part(config)
    if text is None:
        return None
    compressed = text.get(COMPRESSED["heads"]) is not None
    # Keys of the token-wise schema alone say nothing: another family's sparse attention has them too.
    tokenwise = text.get(TOKENWISE["budget_tokens"]) is not None and _is_qwen(text)
    if compressed and tokenwise:
        given = f"{COMPRESSED['heads']} and {TOKENWISE['budget_tokens']}"
        remedy = "The configuration is ambiguous: remove the keys of one schema."
        raise ParameterError(ROOM, [Reason("schema", given, "one of both", remedy)])
    if compressed:
        return _compressed(_integers(text, COMPRESSED))
    return _tokenwise(_integers(text, TOKENWISE)) if tokenwise else None


def _text_part(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if config is None:
        return None
    _require_mapping("config", config)
    text = config.get("text_config", config)
    if text is not None:
        _require_mapping("text_config", text)
    return text


def _require_mapping(field: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise ParameterError(ROOM, [Reason(field, repr(value), "a mapping of keys to values")])


def _is_qwen(text: Mapping[str, Any]) -> bool:
    return str(text.get("model_type") or "").startswith(MODEL_PREFIX)


def _integers(text: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, int]:
    """Field to value; refuses what is missing, no integer or not positive, all at once."""
    reasons = []
    for key in keys.values():
        value = text.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            reasons.append(Reason(key, "missing" if value is None else repr(value), "a positive integer"))
    if reasons:
        raise ParameterError(ROOM, reasons)
    return {field: text[key] for field, key in keys.items()}


def _compressed(values: dict[str, int]) -> Profile:
    ratio, budget = values["ratio"], values["budget_tokens"]
    reasons = _one_kv_head(values, COMPRESSED)
    if ratio < 2:
        why = "A padding row has length 1 and must never complete a group."
        reasons.append(Reason(COMPRESSED["ratio"], repr(ratio), "2 or more", why))
    elif budget % ratio:
        reasons.append(Reason(COMPRESSED["budget_tokens"], repr(budget), f"a multiple of {ratio}, the ratio"))
    elif budget // ratio not in BLOCK_COUNTS:
        allowed = f"{' or '.join(str(count * ratio) for count in BLOCK_COUNTS)} for a ratio of {ratio}"
        why = f"The top-k selects {' or '.join(map(str, BLOCK_COUNTS))} blocks, not {budget // ratio}."
        reasons.append(Reason(COMPRESSED["budget_tokens"], repr(budget), allowed, why))
    if reasons:
        raise ParameterError(ROOM, reasons)
    return Profile(variant="compressed", rope="mrope", **values)


def _tokenwise(values: dict[str, int]) -> Profile:
    reasons = _one_kv_head(values, TOKENWISE)
    if values["budget_tokens"] != TOKENWISE_BUDGET_TOKENS:
        given = repr(values["budget_tokens"])
        reasons.append(Reason(TOKENWISE["budget_tokens"], given, str(TOKENWISE_BUDGET_TOKENS)))
    if reasons:
        raise ParameterError(ROOM, reasons)
    return Profile(variant="tokenwise", rope="plain", ratio=1, **values)


def _one_kv_head(values: dict[str, int], keys: Mapping[str, str]) -> list[Reason]:
    given = values["kv_heads"]
    return [] if given == 1 else [Reason(keys["kv_heads"], repr(given), "1", "All index heads share one key head.")]
