"""Deliberately wrong top-k selections, one mistake each: what the gates must reject before they count.

Every mutant is a radix select that would be right without its mistake, on any device. Whether a mistake in the order of
keys or in the ties meets anything depends on the values: there `applies` compares the wrong selection with the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kda_lab.ops.protocol import Call, FunctionArm, Launcher, Mutant
from kda_lab.ops.qsa_topk_blocks.oracle import DIGIT_BITS, by_digits, live_lengths, ordered_integers, threshold_of
from kda_lab.ops.wrong import all_zero, untouched

BUFFER = 4096
"""Candidates that a two-pass radix select keeps of the threshold's bucket (reported of a public kernel)."""

Choose = Callable[[torch.Tensor, int], torch.Tensor]
"""Scores of the live columns [n] and m to the chosen ids, in the order in which they are written."""


@dataclass(frozen=True)
class _Select:
    """The op with replaceable steps; the defaults are right."""

    choose: Choose = by_digits
    length: Callable[[list[int], int, int], int] = lambda lengths, b, columns: lengths[b]
    """Columns that row b looks at: (lengths, b, N)."""
    count: Callable[[int, int], int] = min
    """How many ids a row gets: (k, n)."""
    padding: int = -1

    def blocks(self, call: Call) -> torch.Tensor:
        """[B, k] int32."""
        scores, k = call.inputs["scores"], call.outputs["blocks"].shape[1]
        lengths = live_lengths(call)
        out = torch.full((scores.shape[0], k), self.padding, dtype=torch.int32, device=scores.device)
        for b in range(scores.shape[0]):
            n = self.length(lengths, b, scores.shape[1])
            m = self.count(k, n)
            ids = self.choose(scores[b, :n], m)[:k] if m else scores.new_empty(0)
            out[b, : ids.numel()] = ids.to(torch.int32)
        return out

    def __call__(self, call: Call) -> None:
        call.outputs["blocks"].copy_(self.blocks(call))


def _as_torch_ranks(choose: Choose) -> Choose:
    """NaN before everything, as torch.topk ranks it."""
    return lambda scores, m: choose(torch.where(scores.isnan(), float("inf"), scores), m)


def _without_ties(scores: torch.Tensor, m: int) -> torch.Tensor:
    keys = ordered_integers(scores)
    return (keys > threshold_of(keys, m)[0]).nonzero()[:, 0]


def _all_ties(scores: torch.Tensor, m: int) -> torch.Tensor:
    keys = ordered_integers(scores)
    return (keys >= threshold_of(keys, m)[0]).nonzero()[:m, 0]


def _late_ties(scores: torch.Tensor, m: int) -> torch.Tensor:
    last = scores.numel() - 1
    return (last - by_digits(scores.flip(0), m)).flip(0)


def _twice(scores: torch.Tensor, m: int) -> torch.Tensor:
    ids = by_digits(scores, m)
    ids[-1:] = ids[-2:-1] if m > 1 else ids[-1:]
    return ids


def _half_keys(scores: torch.Tensor, m: int) -> torch.Tensor:
    keys = ordered_integers(scores) >> 16
    threshold, need = threshold_of(keys << 16, m, passes=2)
    equal = keys == threshold
    return ((keys > threshold) | (equal & (equal.cumsum(0) <= need))).nonzero()[:, 0]


def _raw_bits(scores: torch.Tensor, m: int) -> torch.Tensor:
    """Bits of FP32 compared as unsigned integers: every negative number above every positive one."""
    bits = torch.where(scores.isnan(), float("-inf"), torch.where(scores == 0, 0.0, scores)).view(torch.int32).long()
    return (-(bits & 0xFFFFFFFF)).argsort(stable=True)[:m].sort().values


def _lossy_buffer(scores: torch.Tensor, m: int) -> torch.Tensor:
    """Keys of the threshold's bucket behind the first `BUFFER` are lost, and others take their places."""
    keys = ordered_integers(scores)
    digit, _ = threshold_of(keys, m, passes=1)
    inside = keys >> (32 - DIGIT_BITS) == digit
    kept = (~inside | (inside.cumsum(0) <= BUFFER)).nonzero()[:, 0]
    return kept[by_digits(scores[kept], min(m, kept.numel()))]


def _smallest(scores: torch.Tensor, m: int) -> torch.Tensor:
    return by_digits(-scores, m)


def _first(scores: torch.Tensor, m: int) -> torch.Tensor:
    return torch.arange(m, device=scores.device)


@dataclass(frozen=True)
class _BakedLengths:
    """An arm that reads the lengths when it is bound."""

    name: str = "lengths_baked"
    source_sha256: str = ""
    reads_live_lengths: bool = True
    """Claimed, so that the checks with changed lengths judge it."""

    def unavailable(self, device: torch.device) -> str:
        return ""

    def bind(self, calls: Sequence[Call]) -> list[Launcher]:
        return [self._launcher(call) for call in calls]

    def _launcher(self, call: Call) -> Launcher:
        baked = call.inputs["lengths"].clone()
        return lambda: _Select()(call.with_inputs(lengths=baked))


def _differs(select: _Select) -> Callable[[Call], bool]:
    return lambda call: not torch.equal(select.blocks(call), _Select().blocks(call))


def _some(test: Callable[[int, int, int], bool]) -> Callable[[Call], bool]:
    """Whether any row's (n, k, N) passes the test."""

    def applies(call: Call) -> bool:
        columns, k = call.inputs["scores"].shape[1], call.outputs["blocks"].shape[1]
        return any(test(n, k, columns) for n in live_lengths(call))

    return applies


def _mutant(name: str, what: str, select: Callable[[Call], None], applies: Callable[[Call], bool], why: str) -> Mutant:
    return Mutant(name, what, lambda: FunctionArm(name, select), applies, why)


def _by_values(name: str, what: str, select: _Select, why: str) -> Mutant:
    return _mutant(name, what, select, _differs(select), why)


_LIVE = (_some(lambda n, k, columns: n > 0), "every row is empty")
_TIES = "no row has more keys at its threshold than it wants"
_BEHIND = _Select(_as_torch_ranks(by_digits), length=lambda lengths, b, columns: columns)
_ONE_MORE = _Select(_as_torch_ranks(by_digits), length=lambda lengths, b, columns: min(lengths[b] + 1, columns))
_ROW_ZERO = _Select(length=lambda lengths, b, columns: lengths[0])

MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "all_zero",
        "Writes block 0 everywhere.",
        all_zero,
        _some(lambda n, k, columns: k > 1 or n == 0),
        "block 0 may be right",
    ),
    Mutant("untouched", "Writes nothing.", lambda: FunctionArm("untouched", untouched)),
    _mutant("ties_dropped", "Takes what is above the threshold only.", _Select(_without_ties), *_LIVE),
    _by_values("ties_unbounded", "Takes every key at the threshold, and cuts by id.", _Select(_all_ties), _TIES),
    _by_values("ties_late", "Breaks ties by the higher id.", _Select(_late_ties), _TIES),
    _mutant(
        "one_fewer",
        "Takes k - 1 ids.",
        _Select(count=lambda k, n: min(k - 1, n)),
        _some(lambda n, k, columns: n >= k),
        "no row has k columns",
    ),
    _mutant(
        "invalid_tail",
        "Ignores the lengths, so that what stands behind them is chosen.",
        _BEHIND,
        _differs(_BEHIND),
        "what stands behind the lengths is ranked lowest, and the rows hold k ids",
    ),
    _by_values("length_plus_one", "Looks at one column too many.", _ONE_MORE, "no column behind a length ranks high"),
    _by_values("length_of_row_0", "Every row has the length of row 0.", _ROW_ZERO, "all lengths select alike"),
    _mutant(
        "duplicate", "Writes one id twice.", _Select(_twice), _some(lambda n, k, columns: min(n, k) > 1), "one id a row"
    ),
    _mutant(
        "padded_with_zero",
        "Pads short rows with block 0 instead of -1.",
        _Select(padding=0),
        _some(lambda n, k, columns: n < k),
        "no row is shorter than k",
    ),
    _by_values("lossy_buffer", f"Keeps {BUFFER} keys of a bucket.", _Select(_lossy_buffer), "no wanted key is lost"),
    _by_values("two_passes", "Stops after 16 of 32 bits.", _Select(_half_keys), "16 bits tell the wanted keys apart"),
    _by_values("raw_bits", "Compares signed scores by their raw bits.", _Select(_raw_bits), "no sign matters"),
    _by_values("nan_first", "Ranks NaN first.", _Select(_as_torch_ranks(by_digits)), "no live NaN matters"),
    _by_values("smallest", "Takes the smallest scores.", _Select(_smallest), "every row is chosen whole, or is flat"),
    _by_values("first_columns", "Takes the first k columns.", _Select(_first), "the first columns are the right ones"),
    Mutant(
        "lengths_baked",
        "Lengths are read when the call is bound, not when it is launched.",
        _BakedLengths,
        _some(lambda n, k, columns: n * 2 // 5 < min(n, k)),
        "a row that is shortened to two fifths still has as many columns as it chose, and its dead ones rank last",
    ),
)
