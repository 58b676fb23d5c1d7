"""Record what the attention projections of a small model are given: its hidden states behind the norm in front of them.

They are what the study of projection fusion multiplies its drawn weights by. `projection.inputs` is no op of the
registry: a capture of it is one tensor, and nothing replays it.

Axes: T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kda_lab.captures.format import Source
from kda_lab.captures.kda_residuals import load_model, read_outputs, recorded_with
from kda_lab.captures.nvfp4_models import MODELS
from kda_lab.captures.nvfp4_record import TEXT_FILE, TEXT_LICENCE
from kda_lab.captures.writing import CaptureDraft, taken, write_set
from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import Call

OP = "projection.inputs"
MODEL = "smollm2"
TOKENS = 256
"""Tokens that the model reads."""

LICENCE = (
    "The tensors hold hidden states of SmolLM2 135M Instruct by HuggingFaceTB, licensed under the Apache License, version "
    f"2.0, and changed as `folded` says. {TEXT_LICENCE}"
)
RECORDED = (
    f"A forward pass of the model in FP32 on a CPU over the first {TOKENS} tokens of text.txt. x is what the layer that "
    "source.layers names hands to the projections of its attention, so the stream behind its input norm, at the positions "
    "that source.positions names. It was rounded once to BF16."
)
FOLDED = (
    "Nothing was resized, scaled or reordered. The model has softmax attention, not Kimi Delta Attention, and the weights that "
    "the study multiplies x by are drawn, not the model's. Rows are positions of one text; a server in decode would "
    "have one row of each of its requests. Nothing is pinned."
)


@dataclass(frozen=True)
class Spot:
    """Where in the model x is taken: the first positions of one layer."""

    layer: int
    tokens: int

    @property
    def name(self) -> str:
        """Name of the capture: `smollm2-layer15`."""
        return f"{MODEL}-layer{self.layer}"


SPOTS = (Spot(0, 128), Spot(15, 256), Spot(29, 128))
"""First, middle and last layer of 30; the middle one is what a study is timed on, so it has the most tokens."""


def record_inputs(text_path: str | Path, out: str | Path, *, replace: bool = False) -> Path:
    """Record the three captures into a new set; about half a minute, most of it for the weights.

    Args:
        text_path: UTF-8 text of at least `TOKENS` tokens; it travels with the set.
        out: folder of the set.
        replace: allow an existing set at `out` to be replaced.
    Returns:
        `out`, to be opened with `CaptureSet.open`.
    Raises:
        ParameterError: `out` exists and `replace` is False, or the text is too short.
        UnavailableError: the model cannot be run here.
    """
    target, text = Path(out), Path(text_path).read_bytes()
    if reasons := taken(target, "out", replace):
        raise ParameterError("captures", reasons)
    source = MODELS[MODEL]
    model, ids, revision = load_model(source, text.decode("utf-8"), TOKENS)
    norms = [model.layers[spot.layer].input_layernorm for spot in SPOTS]
    states = read_outputs(model, ids, {"x": norms})["x"]
    note = f"Real inputs of the attention projections of {source.model}. Recorded with {recorded_with()}."
    drafts = input_drafts(states, source.model, revision)
    return write_set(target, OP, drafts, texts={TEXT_FILE: text}, note=note, replace=replace)


def input_drafts(states: Sequence[torch.Tensor] | torch.Tensor, model: str, revision: str) -> list[CaptureDraft]:
    """The captures on their way to disk.

    Args:
        states: one [T, D] a spot, FP32, in the order of `SPOTS`.
        model, revision: what the manifest says of the model.
    """
    return [_draft(rows, spot, model, revision) for rows, spot in zip(states, SPOTS, strict=True)]


def _draft(rows: torch.Tensor, spot: Spot, model: str, revision: str) -> CaptureDraft:
    x = rows[: spot.tokens].bfloat16().contiguous()
    call = Call(OP, {"x": x}, {}, {}, label=spot.name)
    call.facts.update({"T": x.shape[0], "D": x.shape[1], "layer": spot.layer, "kind": "hidden states"})
    return CaptureDraft(
        name=spot.name,
        kind="real",
        call=call,
        source=Source(
            model=model,
            revision=revision,
            text=f"{TEXT_FILE}, first {TOKENS} tokens",
            layers=(spot.layer,),
            positions=tuple(range(spot.tokens)),
        ),
        licence=LICENCE,
        recorded=RECORDED,
        folded=FOLDED,
    )
