"""Deliberately wrong block scores, one mistake each: what the gates must reject before they count.

Every mutant computes in FP32 on any device and would be right without its mistake. `applies` reads tensors on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kda_lab.ops.precision import full_fp32
from kda_lab.ops.protocol import Arm, Call, Mutant
from kda_lab.ops.qsa.geometry import INDEX_DIM, PAGE_ENTRIES, RATIO
from kda_lab.ops.qsa_block_scores.oracle import live_lengths
from kda_lab.ops.wrong import all_zero, baked, plain, untouched


def _right_entries(call: Call, row: int, length: int) -> torch.Tensor:
    n = torch.arange(length, device=call.device)
    pages = call.inputs["pages"]
    return pages[row, n // PAGE_ENTRIES].long() * PAGE_ENTRIES + n % PAGE_ENTRIES


def _relu_then_sum(dots: torch.Tensor) -> torch.Tensor:
    return dots.clamp(min=0).sum(0)


@dataclass(frozen=True)
class _Scores:
    """The op with replaceable steps; the defaults are right."""

    entries: Callable[[Call, int, int], torch.Tensor] = _right_entries
    """Pool entries of a row's first `length` blocks: (call, row, length)."""
    total: Callable[[torch.Tensor], torch.Tensor] = _relu_then_sum
    """[HI, L] products to [L]."""
    heads: Callable[[torch.Tensor], torch.Tensor] = lambda q: q
    """[HI, D] queries of a row to those that are used."""
    scale: Callable[[int], float] = lambda width: width**-0.5
    width: int = INDEX_DIM
    """How many elements of D the products use."""
    length: Callable[[int, int], int] = lambda length, most: length
    """How many blocks are scored: (length, N)."""
    dead: float = -math.inf
    rounded: bool = False
    """Products rounded to BF16."""

    def output(self, call: Call) -> torch.Tensor:
        """[B, N] fp32."""
        queries, keys, out = call.inputs["q_index"], call.inputs["keys"], call.outputs["scores"]
        scores = torch.full(out.shape, self.dead, dtype=torch.float32, device=out.device)
        with full_fp32():
            # Not checked: a mutant that baked the lengths meets pages that no longer go with them.
            for b, length in enumerate(call.inputs["lengths"].tolist()):
                count = self.length(length, out.shape[1])
                at = self.entries(call, b, count).clamp(0, keys.shape[0] - 1)
                q, k = self.heads(queries[b].float())[:, : self.width], keys[at].float()[:, : self.width]
                dots = q @ k.T
                dots = dots.bfloat16().float() if self.rounded else dots
                scores[b, :count] = self.total(dots) * self.scale(queries.shape[2])
        return scores

    def __call__(self, call: Call) -> None:
        call.outputs["scores"].copy_(self.output(call))


def _pages_ignored(call: Call, row: int, length: int) -> torch.Tensor:
    return torch.arange(length, device=call.device)


def _pages_of_first_row(call: Call, row: int, length: int) -> torch.Tensor:
    return _right_entries(call, 0, length)


def _page_of(entries: int) -> Callable[[Call, int, int], torch.Tensor]:
    """Pages taken for `entries` entries each."""

    def read(call: Call, row: int, length: int) -> torch.Tensor:
        n = torch.arange(length, device=call.device)
        pages = call.inputs["pages"]
        return pages[row, (n // entries).clamp(max=pages.shape[1] - 1)].long() * entries + n % entries

    return read


def _page_as_entry(call: Call, row: int, length: int) -> torch.Tensor:
    n = torch.arange(length, device=call.device)
    return call.inputs["pages"][row, n // PAGE_ENTRIES].long() + n % PAGE_ENTRIES


def _next_page(call: Call, row: int, length: int) -> torch.Tensor:
    """The page index is computed from n + 1, so that the last entry of a page comes from the next one."""
    n = torch.arange(length, device=call.device)
    pages = call.inputs["pages"]
    column = ((n + 1) // PAGE_ENTRIES).clamp(max=pages.shape[1] - 1)
    return pages[row, column].long() * PAGE_ENTRIES + n % PAGE_ENTRIES


def _live_only(call: Call) -> None:
    """Dead scores are left as they were."""
    scores = _Scores().output(call)
    for b, length in enumerate(live_lengths(call)):
        call.outputs["scores"][b, :length] = scores[b, :length]


def _baked(name: str, what: str, *tensors: str) -> Mutant:
    def fresh() -> Arm:
        return baked(name, tensors, _Scores())

    return Mutant(name, what, fresh, _some(lambda n, most: n > 0), "all rows are empty")


def _some(test: Callable[[int, int], bool]) -> Callable[[Call], bool]:
    """Whether any row passes: (length, N)."""
    return lambda call: any(test(n, call.outputs["scores"].shape[1]) for n in live_lengths(call))


def _reads_elsewhere(entries: Callable[[Call, int, int], torch.Tensor]) -> Callable[[Call], bool]:
    """Whether the wrong map gives any live block another entry."""

    def applies(call: Call) -> bool:
        lengths = live_lengths(call)
        last = call.inputs["keys"].shape[0] - 1
        return any(
            bool((entries(call, b, n).clamp(0, last) != _right_entries(call, b, n)).any())
            for b, n in enumerate(lengths)
        )

    return applies


def _has_negative_products(call: Call) -> bool:
    queries, keys = call.inputs["q_index"].float(), call.inputs["keys"]
    return any(
        bool((queries[b] @ keys[_right_entries(call, b, n)].float().T < 0).any())
        for b, n in enumerate(live_lengths(call))
        if n
    )


def _scores_something(call: Call) -> bool:
    scores = _Scores().output(call)
    return bool((scores > 0).any())


def _changes(mistake: _Scores) -> Callable[[Call], bool]:
    """Whether the mistake moves any live score by more than 1e-3 of the largest."""

    def applies(call: Call) -> bool:
        right, wrong = _Scores().output(call), mistake.output(call)
        live = torch.isfinite(right) & torch.isfinite(wrong)
        if not bool(live.any()):
            return False
        moved = (right - wrong)[live].abs().max()
        return bool(moved > 1e-3 * right[live].abs().max())

    return applies


def _step(name: str, what: str, mistake: _Scores) -> Mutant:
    return plain(name, what, mistake, _changes(mistake), "no live score changes by it")


def _map(name: str, what: str, entries: Callable[[Call, int, int], torch.Tensor]) -> Mutant:
    return plain(
        name, what, _Scores(entries=entries), _reads_elsewhere(entries), "every live block keeps its entry by chance"
    )


_NEGATIVE = (_has_negative_products, "no live product is negative")
_ALIVE = (_scores_something, "no live score is above zero")
_DEAD = (_some(lambda n, most: n < most), "every row has all of its blocks")

MUTANTS: tuple[Mutant, ...] = (
    plain("untouched", "Writes nothing.", untouched),
    plain("all_zero", "Writes zeros.", all_zero, *_ALIVE),
    plain("relu_missing", "Negative products count.", _Scores(total=lambda d: d.sum(0)), *_NEGATIVE),
    plain("relu_of_sum", "The ReLU is of the sum over heads.", _Scores(total=lambda d: d.sum(0).relu()), *_NEGATIVE),
    plain("absolute", "Magnitudes are summed.", _Scores(total=lambda d: d.abs().sum(0)), *_NEGATIVE),
    _step("largest_head", "The largest head counts alone.", _Scores(total=lambda d: d.amax(0).clamp(min=0))),
    _step("mean_of_heads", "Heads are averaged.", _Scores(total=lambda d: _relu_then_sum(d) / d.shape[0])),
    plain("scale_omitted", "Scores are not scaled.", _Scores(scale=lambda width: 1.0), *_ALIVE),
    plain("scale_squared", "The scale is 1/128.", _Scores(scale=lambda width: 1.0 / width), *_ALIVE),
    plain("scale_of_256", "The scale is that of attention, 1/16.", _Scores(scale=lambda width: 1 / 16), *_ALIVE),
    _step("head_twice", "The first head counts twice.", _Scores(heads=lambda q: torch.cat([q, q[:1]]))),
    _step("last_head_dropped", "The last head is left out.", _Scores(heads=lambda q: q[:-1])),
    _step("first_head_only", "One head serves for all.", _Scores(heads=lambda q: q[:1].expand(q.shape))),
    _step("half_width", "Products use the first half of the width.", _Scores(width=INDEX_DIM // 2)),
    plain("products_rounded", "Products are rounded to BF16.", _Scores(rounded=True), *_ALIVE),
    _map("pages_ignored", "Block n is entry n of the pool.", _pages_ignored),
    _map("pages_of_first_row", "Every row reads the pages of row 0.", _pages_of_first_row),
    _map("page_of_eight", "A page is taken for 8 entries.", _page_of(8)),
    _map("page_of_tokens", "A page is taken for its 64 tokens.", _page_of(64)),
    _map("page_as_entry", "The page id is taken for the entry of its first block.", _page_as_entry),
    _map("page_too_early", "The last block of a page is read from the next page.", _next_page),
    plain(
        "length_short",
        "The last block of each row is scored -inf.",
        _Scores(length=lambda n, most: max(0, n - 1)),
        _some(lambda n, most: n > 0),
        "all rows are empty",
    ),
    plain("length_long", "One block too many is scored.", _Scores(length=lambda n, most: min(n + 1, most)), *_DEAD),
    plain(
        "length_as_tokens",
        "The compressed length is divided by the ratio once more.",
        _Scores(length=lambda n, most: n // RATIO),
        _some(lambda n, most: n > 0),
        "all rows are empty",
    ),
    plain(
        "length_to_page",
        "All entries of the last page are scored.",
        _Scores(length=lambda n, most: -(-n // PAGE_ENTRIES) * PAGE_ENTRIES),
        _some(lambda n, most: n % PAGE_ENTRIES > 0),
        "every row ends with its page",
    ),
    plain("dead_zero", "Dead scores are 0 instead of -inf.", _Scores(dead=0.0), *_DEAD),
    plain("dead_lowest", "Dead scores are the lowest finite number.", _Scores(dead=-3.4028234663852886e38), *_DEAD),
    plain("dead_unwritten", "Dead scores are not written.", _live_only, *_DEAD),
    _baked("lengths_baked", "Lengths are read when the call is bound, not when it is launched.", "lengths"),
    _baked("pages_baked", "Pages are read when the call is bound, not when it is launched.", "pages"),
)
