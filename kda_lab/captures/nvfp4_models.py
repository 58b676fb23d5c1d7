"""Run a small model on a text on the CPU and keep one MLP: its weights, and what its two products are given.

Needs the extra `capture`, and the model's own package. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kda_lab.captures import gemma, smollm
from kda_lab.errors import ParameterError, Reason, UnavailableError

Step = Callable[[str], None]
"""Called with a word when a part of the work is done, so that a bar can move."""
PRODUCTS = ("gate_up", "down")
"""The two products of a gated MLP: [gate; up] fused into one weight, and down."""


@dataclass(frozen=True)
class SourceModel:
    """A model that can be recorded, and the layer whose MLP is taken."""

    name: str
    """First word of its captures' names: `smollm2`."""
    layer: int
    """0-based; a middle layer."""
    model: str
    """What a manifest says of it: name, file format, what was done to its numbers."""
    licence: str
    missing: Callable[[], str]
    """Why it cannot be run here; empty when it can."""
    gguf: Callable[[], tuple[Path, str]]
    """The GGUF file and its revision in words."""


@dataclass(frozen=True)
class MlpReading:
    """One MLP of a model, and what it was given while the model read two texts. BF16, contiguous."""

    gate: torch.Tensor
    """[I, H]"""
    up: torch.Tensor
    """[I, H]"""
    down: torch.Tensor
    """[H, I]"""
    inputs: dict[str, torch.Tensor]
    """Product to its left operand over the recorded text: `gate_up` [T, H], `down` [T, I]."""
    calibrated_amax: dict[str, float]
    """Product to the largest magnitude of its left operand over the calibration text."""
    revision: str
    versions: dict[str, str]


def _missing_smollm() -> str:
    return "; ".join(reason for reason in (gemma.missing_extra(gemma.LOADER), smollm.missing_model()) if reason)


def _smollm_gguf() -> tuple[Path, str]:
    path = smollm.gguf_path()
    return path, f"{path.name} of {smollm.PACKAGE} {importlib.metadata.version(smollm.PACKAGE)}, sha256 {smollm.SHA256}"


def _gemma_gguf() -> tuple[Path, str]:
    package = gemma.loaded_module(gemma.MODEL_PACKAGE)
    return Path(package.assemble()), f"{package.MODEL_NAME} sha256 {package.EXPECTED_SHA256}"


MODELS = {
    "smollm2": SourceModel(
        name="smollm2",
        layer=15,
        model="HuggingFaceTB/SmolLM2-135M-Instruct, GGUF Q4_1, dequantised to FP32",
        licence=(
            "The tensors hold a layer's weights and activations of SmolLM2 135M Instruct by HuggingFaceTB, licensed under "
            "the Apache License, version 2.0, and changed as `folded` says."
        ),
        missing=_missing_smollm,
        gguf=_smollm_gguf,
    ),
    "gemma3": SourceModel(
        name="gemma3",
        layer=9,
        model="google/gemma-3-270m, GGUF Q4_K_M, dequantised to FP32",
        licence=(
            "The tensors hold a layer's weights and activations of Gemma 3 270M, changed as `folded` says. Gemma is provided "
            "under and subject to the Gemma Terms of Use found at https://ai.google.dev/gemma/terms, whose use restrictions "
            "(https://ai.google.dev/gemma/prohibited_use_policy) hold for these tensors too."
        ),
        missing=gemma.missing_extra,
        gguf=_gemma_gguf,
    ),
}
"""Models by the first word of their captures' names. SmolLM2 has 30 layers, Gemma 3 270M has 18."""


def read_mlp(
    source: SourceModel, text: str, calibration: str, tokens: int, step: Step = lambda word: None
) -> MlpReading:
    """Run the model over the first tokens of two texts in FP32 on the CPU, and keep the MLP of its layer.

    Args:
        source: one of `MODELS`.
        text: what is recorded; at least `tokens` tokens long.
        calibration: what the largest magnitudes are taken over; at least `tokens` tokens long.
        tokens: tokens read of each, the beginning-of-sequence token included where the model has one.
        step: called after the texts, the model, and each of the two passes.
    Raises:
        UnavailableError: the extra `capture` or the model's package is not installed.
        ParameterError: a text is too short.
    """
    if reason := source.missing():
        raise UnavailableError("captures", reason)
    path, revision = source.gguf()
    transformers = gemma.loaded_module("transformers")
    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    texts = {"calibration": calibration, "text": text}
    ids = {name: _ids(tokenizer, name, words, tokens) for name, words in texts.items()}
    step(f"{source.name}: texts")
    model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval().model
    step(f"{source.name}: model")
    calibrated = _run(model, ids["calibration"], source.layer)
    step(f"{source.name}: calibration")
    read = _run(model, ids["text"], source.layer)
    step(f"{source.name}: layer {source.layer}")
    mlp = model.layers[source.layer].mlp
    return MlpReading(
        gate=_bf16(mlp.gate_proj.weight),
        up=_bf16(mlp.up_proj.weight),
        down=_bf16(mlp.down_proj.weight),
        inputs=read,
        calibrated_amax={product: float(x.abs().amax()) for product, x in calibrated.items()},
        revision=revision,
        versions={n: importlib.metadata.version(n) for n in ("torch", "transformers", "gguf")},
    )


def _ids(tokenizer: Any, name: str, words: str, tokens: int) -> torch.Tensor:
    ids = tokenizer(words, return_tensors="pt").input_ids
    if ids.shape[1] < tokens:
        reason = Reason(name, f"{ids.shape[1]} tokens", f"at least {tokens}", "Give a longer text.")
        raise ParameterError("captures", [reason])
    return ids[:, :tokens]


def _run(model: Any, ids: torch.Tensor, layer: int) -> dict[str, torch.Tensor]:
    """Left operands of the two products of one layer over one text, rounded once to BF16."""
    model.layers = model.layers[: layer + 1]
    model.config.num_hidden_layers = layer + 1
    mlp = model.layers[layer].mlp
    kept: dict[str, torch.Tensor] = {}
    modules = {"gate_up": mlp.gate_proj, "down": mlp.down_proj}
    hooks = [module.register_forward_pre_hook(_keeper(kept, product)) for product, module in modules.items()]
    try:
        with torch.inference_mode():
            model(ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def _keeper(kept: dict[str, torch.Tensor], product: str) -> Callable[..., None]:
    def keep(module: Any, arguments: tuple[Any, ...]) -> None:
        kept[product] = _bf16(arguments[0][0])

    return keep


def _bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.bfloat16).contiguous().clone()
