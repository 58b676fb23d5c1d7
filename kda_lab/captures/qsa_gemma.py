"""Record the fifteen QSA captures from a real model on a real text: Gemma 3 270M, layers 5 and 11.

The source thread (sglang PR 36845) judged its kernel on fifteen captures that are not public. These
have the same topologies and lengths, and come from another model, folded to the op's 12 query heads a
KV head; `FOLDED` says how, and stands in the manifest word for word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from kda_lab import interpreter, runtime
from kda_lab.captures.facts import packed_facts
from kda_lab.captures.format import Producer, Source
from kda_lab.captures.gemma import LayerTensors, Reading, read_text
from kda_lab.captures.qsa_selection import folded_queries, selected_tokens
from kda_lab.captures.writing import CaptureDraft, PoolRows, taken, write_set
from kda_lab.errors import ParameterError, Reason, UnavailableError
from kda_lab.ops.arms import find_arm
from kda_lab.ops.protocol import Call, Scalar

OP = "qsa.packed_decode"
LAYERS = (5, 11)
TOKENS = 8192
WIDTH = 2051
"""Most tokens a row attends to: 2048 selected and up to 3 of the incomplete block."""
POOL_FILE = "pool.safetensors"
TEXT_FILE = "text.txt"
PRODUCER_ARM = "per_head"
TOPOLOGIES: dict[str, tuple[int, ...]] = {"tp1": (0, 1), "tp2r0": (0,), "tp2r1": (1,)}
"""Topology to the KV heads it holds: KV head 0 is layer 5, KV head 1 is layer 11."""
SHORT_ROWS: dict[str, tuple[int, ...]] = {
    "q1": (858,),
    "q3": (113, 511, 908),
    "q4-short": (64, 861, 1307, 2051),
    "q12": (97, 211, 389, 511, 607, 701, 809, 857, 881, 893, 907, 911),
}
"""Row to its live lengths; a row of length n stands at position n-1 and attends to tokens 0 to n-1."""
SATURATED = "q4-saturated"
ROWS = ("q1", "q3", "q4-short", SATURATED, "q12")

LICENCE = (
    "The tensors are activations computed with Gemma 3 270M, whose use is subject to the Gemma Terms of Use "
    "(https://ai.google.dev/gemma/terms). The text that was read is text.txt: the GNU General Public License, "
    "version 3, whose holder permits everyone to copy and distribute verbatim copies, followed by the Apache "
    "License, version 2.0, also verbatim."
)
RECORDED = (
    "One forward pass of the model in FP32 on a CPU over the first 8192 tokens of text.txt. Q, K and V are those "
    "that the attention of the layer receives: after the q and k norms and the rotary embedding, rounded once to BF16."
)
FOLDED = (
    "The model has 4 query heads and 1 KV head a layer; the op has 12 query heads a KV head. The 12 query heads of a "
    "row at position p are the 4 heads at positions p-2, p-1 and p, in that order: head 4j+h is head h at position "
    "p-2+j. The op has no causal mask, so the heads of the two earlier positions may attend to up to two later keys. "
    "KV head 0 and query heads 0-11 come from layer 5, KV head 1 and query heads 12-23 from layer 11; tp1 holds both, "
    "tp2r0 (rank 0) the first half and tp2r1 (rank 1) the second. A row of length n up to 2051 stands at position n-1 "
    "and attends to all tokens 0 to n-1. The rows of q4-saturated stand at four consecutive positions; each layer "
    "selects for itself 512 of the complete blocks of 4 tokens, those with the largest attention mass (softmax "
    "with each head's own causal limit, in FP32 from the BF16 tensors, summed over the 12 heads and 4 tokens), and the "
    "incomplete last block is always attended to; the tokens are in ascending order. The model itself attends "
    "densely; it was not trained with this selection. K and V are kept once, as rows of pool.safetensors, and "
    "gathered by index: row t is token t of layer 5, row 8192+t is token t of layer 11. Nothing else was changed."
)


@dataclass(frozen=True)
class _Row:
    """One call of the set, still as positions: for each row its query position and token ids per KV head."""

    name: str
    positions: tuple[int, ...]
    tokens: list[torch.Tensor]
    """[n, KV heads] int64 a row: token ids per KV head."""


def saturated_positions(tokens: int) -> tuple[int, ...]:
    """Four consecutive positions as late as the text allows, whose incomplete blocks hold 0, 1, 2 and 3 tokens."""
    first = (tokens - 4) // 4 * 4 - 1
    return tuple(range(first, first + 4))


def capture_names(topologies: Sequence[str] = tuple(TOPOLOGIES)) -> list[str]:
    """Names of the captures of some topologies, in order; of all fifteen by default: `tp1-q1` … `tp2r1-q12`."""
    return [f"{topology}-{row}" for topology in topologies for row in ROWS]


def record_qsa(
    text_path: str | Path,
    out: str | Path,
    *,
    topologies: Sequence[str] = tuple(TOPOLOGIES),
    progress: bool = True,
    replace: bool = False,
) -> Path:
    """Record the captures into a new set; all fifteen take about three minutes on two idle CPU cores.

    Args:
        text_path: UTF-8 text of at least 8192 tokens; a copy goes into the set.
        out: folder of the set.
        topologies: which of `tp1`, `tp2r0`, `tp2r1`; five captures each.
        progress: show a bar.
        replace: allow an existing set at `out` to be replaced.
    Returns:
        `out`, to be opened with `CaptureSet.open`.
    Raises:
        UnavailableError: the extra `capture` or the producer of the pinned output is not usable here.
        ParameterError: the text is too short, a topology is unknown, or `out` exists and `replace` is
            False; the last two are found before the model runs.
    """
    target, text = Path(out), Path(text_path).read_bytes()
    _check_parameters(target, topologies, replace)
    # First, since transformers imports Triton, and Triton reads TRITON_INTERPRET when it is imported.
    runtime.use_interpreter_on_cpu()
    interpreter.ensure_faithful()
    steps = 2 + max(LAYERS) + 1 + len(capture_names(topologies))
    with tqdm(total=steps, disable=not progress, desc="recording", unit="step") as bar:

        def step(word: str) -> None:
            bar.set_postfix_str(word)
            bar.update()

        reading = read_text(text.decode("utf-8"), LAYERS, TOKENS, step)
        drafts = []
        for draft in qsa_drafts(reading, topologies):
            drafts.append(draft)
            step(draft.name)
    return write_qsa(reading, drafts, text, target, replace)


def write_qsa(reading: Reading, drafts: Sequence[CaptureDraft], text: bytes, out: str | Path, replace: bool) -> Path:
    """Write drafts of `qsa_drafts` with the pool they gather from and the text that was read.

    Raises:
        CaptureError: `out` exists and `replace` is False, or a draft does not fit the reading.
    """
    pool = {n: torch.cat([getattr(reading.layers[i], n) for i in LAYERS]) for n in ("k", "v")}
    note = f"Recorded with {', '.join(f'{n} {v}' for n, v in reading.versions.items())}."
    return write_set(out, OP, drafts, pools={POOL_FILE: pool}, texts={TEXT_FILE: text}, note=note, replace=replace)


def _check_parameters(target: Path, topologies: Sequence[str], replace: bool) -> None:
    reasons = []
    if unknown := [name for name in topologies if name not in TOPOLOGIES]:
        reasons.append(Reason("topologies", repr(unknown), ", ".join(TOPOLOGIES)))
    if reasons := [*reasons, *taken(target, "out", replace)]:
        raise ParameterError("captures", reasons)


def qsa_drafts(reading: Reading, topologies: Sequence[str] = tuple(TOPOLOGIES)) -> Iterator[CaptureDraft]:
    """Yield the drafts of the captures with their pinned outputs.

    Args:
        reading: the model's layers 5 and 11 over at least 2052 tokens.
        topologies: keys of `TOPOLOGIES`.
    """
    layers = [reading.layers[i] for i in LAYERS]
    rows = [_row(name, layers, reading) for name in ROWS]
    for topology in topologies:
        for row in rows:
            yield _draft(topology, TOPOLOGIES[topology], row, layers, reading)


def _row(name: str, layers: list[LayerTensors], reading: Reading) -> _Row:
    if name != SATURATED:
        lengths = SHORT_ROWS[name]
        every = [torch.arange(n)[:, None].expand(n, len(layers)) for n in lengths]
        return _Row(name, tuple(n - 1 for n in lengths), every)
    positions = saturated_positions(reading.tokens)
    chosen = []
    for position in positions:
        queries = [folded_queries(layer.q, position) for layer in layers]
        keys = [layer.k[: position + 1] for layer in layers]
        picks = [selected_tokens(q, k, reading.softmax_scale) for q, k in zip(queries, keys, strict=True)]
        chosen.append(torch.stack(picks, dim=1))
    return _Row(name, positions, chosen)


def _draft(
    topology: str, heads: tuple[int, ...], row: _Row, layers: list[LayerTensors], reading: Reading
) -> CaptureDraft:
    tokens = torch.cat(row.tokens)[:, list(heads)]  # [N, HKV]
    call = _call(f"{topology}-{row.name}", heads, row, layers, tokens, reading.softmax_scale)
    pinned, producer = pinned_output(call)
    index = (tokens + torch.tensor(heads) * reading.tokens).to(torch.int32)
    return CaptureDraft(
        name=call.label,
        kind="real",
        call=call,
        source=Source(
            model=reading.model,
            revision=reading.revision,
            text=f"{TEXT_FILE}, first {reading.tokens} tokens",
            layers=tuple(LAYERS[h] for h in heads),
            positions=row.positions,
            rank=heads[0] if len(heads) == 1 else 0,
            tensor_parallel_size=1 if len(heads) == 2 else 2,
        ),
        licence=LICENCE,
        recorded=RECORDED,
        folded=FOLDED,
        pinned=pinned,
        producer=producer,
        gathers={name: PoolRows(POOL_FILE, name, index) for name in ("k", "v")},
    )


def _call(
    label: str, heads: tuple[int, ...], row: _Row, layers: list[LayerTensors], tokens: torch.Tensor, scale: float
) -> Call:
    q = torch.stack([torch.cat([folded_queries(layers[h].q, p) for h in heads]) for p in row.positions])
    ends = torch.tensor([0, *(len(t) for t in row.tokens)]).cumsum(0).to(torch.int32)
    inputs = {
        "q": q,
        "k": torch.stack([layers[h].k[tokens[:, i]] for i, h in enumerate(heads)], dim=1),
        "v": torch.stack([layers[h].v[tokens[:, i]] for i, h in enumerate(heads)], dim=1),
        "cu_seqlens_q": torch.arange(len(row.positions) + 1, dtype=torch.int32),
        "cu_seqlens_k": ends,
    }
    scalars: dict[str, Scalar] = {"max_seqlen_k": WIDTH, "softmax_scale": scale, "max_seqlen_q": 1}
    return Call(OP, inputs, scalars, {"out": torch.zeros_like(q)}, label=label, facts=packed_facts(inputs))


def pinned_output(call: Call) -> tuple[dict[str, torch.Tensor], Producer]:
    """Run the slow correct baseline on a call, on a GPU if there is one, and say what ran.

    Returns:
        The outputs on the CPU, and their producer.
    Raises:
        UnavailableError: no GPU, and Triton's interpreter is off or was switched on too late.
    """
    runtime.use_interpreter_on_cpu()
    device = runtime.default_device()
    arm = find_arm(OP, PRODUCER_ARM)
    if why := arm.unavailable(device):
        raise UnavailableError("captures", why)
    fresh = call.to(device)
    arm.bind([fresh])[0]()
    interpreted = runtime.interpreter_on()
    where = f"Triton's interpreter on a {device.type}" if interpreted else str(runtime.device_facts(device)["name"])
    return {name: tensor.cpu() for name, tensor in fresh.outputs.items()}, Producer(
        name=f"kda_lab arm {PRODUCER_ARM} (one Triton program a query head, FP32 arithmetic, BF16 output), {where}",
        versions={name: runtime.versions()[name] for name in ("triton", "torch")},
        interpreter=interpreted,
    )
