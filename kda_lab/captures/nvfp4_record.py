"""Record the NVFP4 captures: the MLP products of two small models on a real text, quantised by the canonical procedure.

Neither model was published in NVFP4. What is real are weights, activations, and so the spread of block scales and
codes; the quantisation is ours, as a checkpoint tool would do it; `FOLDED` says how, and stands in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from kda_lab import runtime
from kda_lab.captures.agreement import relative_l2
from kda_lab.captures.facts import gemm_facts
from kda_lab.captures.format import Producer, Source
from kda_lab.captures.nvfp4_models import MODELS, PRODUCTS, MlpReading, SourceModel, read_mlp
from kda_lab.captures.writing import CaptureDraft, taken, write_set
from kda_lab.errors import ParameterError, Reason, UnavailableError
from kda_lab.ops.nvfp4.containers import prepare_activation
from kda_lab.ops.nvfp4.modelopt import LoadedLinear, Partition, load_linear
from kda_lab.ops.nvfp4.quantise import RANGE, dequantise, global_scale_of, quantise
from kda_lab.ops.protocol import Call

OP = "nvfp4.gemm"
TEXT_FILE = "text.txt"
CALIBRATION_STARTS = "Apache License"
"""The text from here on is for calibration, what stands before is recorded."""
WEIGHTS_FILE = "weights.safetensors"
"""Keeps each weight once for the five captures of its product."""
TOKENS = 1024
ROWS = (1, 2, 4, 8, 9)
"""M of the captures: decode batches, and 9 rows of a speculative verify step."""
ENCODINGS = {
    "x_fp4": "two E2M1 codes a byte, low nibble the even k",
    "weight": "two E2M1 codes a byte, low nibble the even k",
    "x_sf": "E4M3FN bytes in the 128x4 swizzle over M rows",
    "weight_sf": "E4M3FN bytes in the 128x4 swizzle over N rows",
}
TEXT_LICENCE = (
    "The text that was read is text.txt: the GNU General Public License, version 3, whose holder permits everyone to "
    "copy and distribute verbatim copies, followed by the Apache License, version 2.0, also verbatim."
)
RECORDED = (
    f"A forward pass of the model in FP32 on a CPU over the first {TOKENS} tokens of the GNU General Public License in "
    "text.txt. The left operands are those that the layer's MLP hands to gate_proj and up_proj (after the norm) and to "
    f"down_proj (after activation and product), rounded once to BF16. A second pass, over the first {TOKENS} tokens of "
    "the Apache License in text.txt, calibrated the activation scale."
)
FOLDED = (
    "Shapes were not changed, nothing was resized or padded. The model's GGUF weights were dequantised to FP32, "
    "rounded to BF16 and quantised to NVFP4: gate_proj and up_proj as one weight [gate; up] along N with one global "
    "scale, weight_scale_2 = amax / 2688 over both. input_scale = amax / 2688 over all tokens of the calibration "
    "pass, the first one included; a larger magnitude saturates. Both operands were quantised by "
    "kda_lab.ops.nvfp4.quantise in its strict order. alpha = input_scale * weight_scale_2. The M rows are the last M "
    "positions of one text; a server would have M requests, or one request's speculative positions. The model itself "
    "computed in FP32 with unquantised operands; the layers before this one were not quantised to NVFP4."
)
PRODUCER = (
    "torch on a CPU: both operands dequantised to BF16 without their global scales, which is exact; torch.matmul of them as "
    "FP32 tensors; times alpha in FP32; rounded to BF16. So an emulation of NVFP4 computes where there is no "
    "FP4 hardware; it is not the output of an FP4 tensor core."
)


@dataclass(frozen=True)
class _Product:
    """One quantised product of one layer, for all positions."""

    name: str
    weight: torch.Tensor
    """[N, K] BF16, unquantised."""
    inputs: torch.Tensor
    """[T, K] BF16, unquantised."""
    loaded: LoadedLinear
    weight_values: torch.Tensor
    """[N, K] FP32: code · scale, without the global scale."""


def capture_names(models: Sequence[str] = tuple(MODELS)) -> list[str]:
    """Names of the captures of some models, in order: `smollm2_gate_up-M1` … `gemma3_down-M9`."""
    return [f"{model}_{product}-M{m}" for model in models for product in PRODUCTS for m in ROWS]


def missing_models() -> dict[str, str]:
    """Each model that cannot be run here, with the reason."""
    return {name: reason for name, source in MODELS.items() if (reason := source.missing())}


def record_nvfp4(
    text_path: str | Path,
    out: str | Path,
    *,
    models: Sequence[str] = tuple(MODELS),
    progress: bool = True,
    replace: bool = False,
) -> Path:
    """Record the captures into a new set; both models take about a minute on two idle CPU cores.

    Args:
        text_path: UTF-8 text: the recorded part, then the calibration part from `CALIBRATION_STARTS` on.
        out: folder of the set.
        models: which of `MODELS`; ten captures each.
        progress: show a bar.
        replace: allow an existing set at `out` to be replaced.
    Returns:
        `out`, to be opened with `CaptureSet.open`.
    Raises:
        UnavailableError: a model cannot be run here.
        ParameterError: the text is too short or has no second part, a model is unknown or none is named, or `out`
            exists and `replace` is False; all but the first are found before a model runs.
    """
    target, text = Path(out), Path(text_path).read_bytes()
    _check_parameters(target, models, replace)
    read, calibration = split_text(text.decode("utf-8"))
    if missing := {name: reason for name, reason in missing_models().items() if name in models}:
        raise UnavailableError("captures", "; ".join(f"{name}: {reason}" for name, reason in missing.items()))
    # transformers imports Triton, and Triton reads TRITON_INTERPRET when it is imported.
    runtime.use_interpreter_on_cpu()
    readings, drafts = {}, []
    with tqdm(total=4 * len(models) + len(capture_names(models)), disable=not progress, desc="recording") as bar:

        def step(word: str) -> None:
            bar.set_postfix_str(word)
            bar.update()

        for name in models:
            readings[name] = read_mlp(MODELS[name], read, calibration, TOKENS, step)
            for draft in nvfp4_drafts(MODELS[name], readings[name]):
                drafts.append(draft)
                step(draft.name)
    return write_nvfp4(readings, drafts, text, target, replace)


def write_nvfp4(
    readings: dict[str, MlpReading], drafts: Sequence[CaptureDraft], text: bytes, out: str | Path, replace: bool
) -> Path:
    """Write drafts of `nvfp4_drafts` with the text that was read.

    Raises:
        CaptureError: `out` exists and `replace` is False.
    """
    versions = {name: version for reading in readings.values() for name, version in reading.versions.items()}
    note = f"Recorded with {', '.join(f'{n} {v}' for n, v in versions.items())}."
    return write_set(out, OP, drafts, texts={TEXT_FILE: text}, note=note, replace=replace)


def split_text(text: str) -> tuple[str, str]:
    """The part that is recorded and the part that is for calibration.

    Raises:
        ParameterError: `CALIBRATION_STARTS` does not occur, or nothing stands before it.
    """
    start = text.rfind("\n", 0, text.find(CALIBRATION_STARTS) + 1)
    if start <= 0:
        allowed = f"words, then a line with {CALIBRATION_STARTS!r} and the calibration text"
        raise ParameterError("captures", [Reason("text", f"{text[:40]!r}…", allowed)])
    return text[:start], text[start:]


def _check_parameters(target: Path, models: Sequence[str], replace: bool) -> None:
    reasons = []
    if unknown := [name for name in models if name not in MODELS]:
        reasons.append(Reason("models", repr(unknown), ", ".join(MODELS)))
    if not models or len(set(models)) != len(models):
        reasons.append(Reason("models", repr(list(models)), f"some of {', '.join(MODELS)}, each once"))
    if reasons := [*reasons, *taken(target, "out", replace)]:
        raise ParameterError("captures", reasons)


def nvfp4_drafts(source: SourceModel, reading: MlpReading) -> Iterator[CaptureDraft]:
    """Yield the drafts of one model's captures: its two products for every M of `ROWS`, with pinned outputs.

    Args:
        source: the model that was read.
        reading: its MLP over at least `max(ROWS)` positions.
    """
    weights = {"gate_up": [reading.gate, reading.up], "down": [reading.down]}
    for name in PRODUCTS:
        product = _quantised(name, weights[name], reading)
        for m in ROWS:
            yield _draft(source, reading, product, m)


def _quantised(name: str, parts: Sequence[torch.Tensor], reading: MlpReading) -> _Product:
    weight = torch.cat(list(parts))
    global_scale = global_scale_of(weight)
    input_scale = reading.calibrated_amax[name] / RANGE
    codes = [quantise(part, global_scale) for part in parts]
    partitions = [Partition(q.packed, q.scales, 1.0 / global_scale, input_scale) for q in codes]
    values = torch.cat([dequantise(q.packed, q.scales) for q in codes])
    return _Product(name, weight, reading.inputs[name], load_linear(partitions), values)


def _draft(source: SourceModel, reading: MlpReading, product: _Product, m: int) -> CaptureDraft:
    x, loaded = product.inputs[-m:], product.loaded
    quantised = quantise(x, loaded.input_global_scale)
    x_fp4, x_sf = prepare_activation(quantised.packed, quantised.scales)
    x_values = dequantise(quantised.packed, quantised.scales)
    inputs = {
        "x_fp4": x_fp4,
        "weight": loaded.weight,
        "x_sf": x_sf,
        "weight_sf": loaded.weight_sf,
        "alpha": loaded.alpha,
    }
    unrounded = emulated_product(x_values, product.weight_values, loaded.alpha)
    errors = quantisation_errors(product, x, x_values, unrounded)
    facts = {**gemm_facts(inputs), "kind": "real", "quantisation_error": errors}
    out = unrounded.to(torch.bfloat16)
    label = f"{source.name}_{product.name}-M{m}"
    last = len(product.inputs)
    return CaptureDraft(
        name=label,
        kind="real",
        call=Call(OP, inputs, {"out_dtype": "bfloat16"}, {"out": torch.zeros_like(out)}, label=label, facts=facts),
        source=Source(
            model=source.model,
            revision=reading.revision,
            text=f"{TEXT_FILE}, the part before {CALIBRATION_STARTS!r}, first {last} tokens",
            layers=(source.layer,),
            positions=tuple(range(last - m, last)),
        ),
        licence=f"{source.licence} {TEXT_LICENCE}",
        recorded=RECORDED,
        folded=FOLDED,
        pinned={"out": out},
        producer=Producer(name=PRODUCER, versions={"torch": runtime.versions()["torch"]}),
        encodings=ENCODINGS,
        shared=dict.fromkeys(("weight", "weight_sf"), WEIGHTS_FILE),
    )


def emulated_product(x_values: torch.Tensor, weight_values: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """alpha · x wᵀ, both operands rounded to BF16 (exact for code · scale), products summed in FP32.

    Args:
        x_values: [M, K] FP32, code · scale without the global scale.
        weight_values: [N, K] FP32, the same.
        alpha: [1] FP32.
    Returns:
        [M, N] FP32, before the rounding to the output's dtype.
    """
    x, weight = (values.to(torch.bfloat16).float() for values in (x_values, weight_values))
    return torch.matmul(x, weight.t()) * alpha


def quantisation_errors(
    product: _Product, x: torch.Tensor, x_values: torch.Tensor, out: torch.Tensor
) -> dict[str, float]:
    """What quantising costs this product: relative L2 against the unquantised BF16 operands, in FP64.

    Information on the model, no gate: kernels are judged against the product of the quantised operands.
    Returns:
        `x` and `weight` alone, and their `product`.
    """
    exact = x.double() @ product.weight.double().t()
    g = float(product.loaded.input_global_scale)
    weight_scale_2 = float(product.loaded.alpha) * g
    return {
        "x": relative_l2(x_values.double() / g, x),
        "weight": relative_l2(product.weight_values.double() * weight_scale_2, product.weight),
        "product": relative_l2(out, exact),
    }
