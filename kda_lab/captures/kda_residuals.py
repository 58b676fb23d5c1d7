"""Record real captures of `kda.attn_residuals`: the residual streams of a small model while it reads a text.

No published model that is small enough to record from has this op. What is real are the streams, what attention and MLP
add to them, and the weight of the norm behind them; the score weight is drawn, and `FOLDED` and the facts say so. Real
streams have what drawn ones lack: a few channels far above the rest, a first token a hundred times larger than the
others, and rows that resemble each other, since each layer adds to the one stream.

Axes: L layers, T tokens, NB snapshots, D width.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from kda_lab import runtime
from kda_lab.captures import gemma
from kda_lab.captures.format import Source
from kda_lab.captures.nvfp4_models import MODELS, SourceModel
from kda_lab.captures.nvfp4_record import TEXT_FILE, TEXT_LICENCE
from kda_lab.captures.writing import CaptureDraft, taken, write_set
from kda_lab.errors import ParameterError, Reason, UnavailableError
from kda_lab.ops.kda.drawing import generator_of
from kda_lab.ops.kda_attn_residuals import oracle
from kda_lab.ops.kda_attn_residuals.cases import KINDS
from kda_lab.ops.protocol import Call, Scalar

OP = "kda.attn_residuals"
MODEL = "smollm2"
TOKENS = 64
"""Tokens that the model reads."""
SNAPSHOT_EVERY = 4
"""Of 30 layers: snapshots behind layers 0, 4, … 28, so eight of them, as many as Kimi K3 saves."""
SEED = 0
SPREAD = 1.2
"""Standard deviation of the scores of a token's rows, in the median over the tokens."""

LICENCE = (
    "The tensors hold hidden states and a norm's weight of SmolLM2 135M Instruct by HuggingFaceTB, licensed under the "
    f"Apache License, version 2.0, and changed as `folded` says. {TEXT_LICENCE}"
)
RECORDED = (
    f"A forward pass of the model in FP32 on a CPU over the first {TOKENS} tokens of text.txt. bank holds the residual "
    f"stream behind every {SNAPSHOT_EVERY}th layer, from layer 0 on; prefix the stream before, or in the mix behind, the "
    "branch that facts.branch names, of the layer that source.layers ends with; delta what this branch adds; out_weight the "
    "weight of the norm that the model itself has behind it. All but out_weight, which stays FP32, were rounded once to BF16."
)
FOLDED = (
    "The model has no attention residuals, and real weights of this op do not exist: score_weight is no weight of any "
    f"model. It was drawn from a normal distribution, by seed {SEED} and the capture's name, and scaled so that the scores of "
    f"a token's rows spread by {SPREAD} in the median; facts.effective_rows says over how many rows the softmax is then spread. Snapshots that do "
    "not count hold streams of the same layers at the positions before these, as memory of an earlier step would. "
    "Nothing was resized. The model added in FP32; a model in BF16 rounds its stream at every addition. Nothing is pinned, "
    "since nothing real computed an output."
)


@dataclass(frozen=True)
class StreamReading:
    """What flowed through every layer of a model over one text. FP32."""

    streams: torch.Tensor
    """[L, T, D] the residual stream behind each layer."""
    attention: torch.Tensor
    """[L, T, D] what each layer's attention added to it."""
    mlp: torch.Tensor
    """[L, T, D] what each layer's MLP added to it."""
    norms: torch.Tensor
    """[2 L + 1, D] weights of the norms in their order: before each attention and MLP, and the last one."""
    epsilon: float


@dataclass(frozen=True)
class Spot:
    """Where in the model and in the text one call is taken."""

    kind: str
    """One of the op's `KINDS`; without a pending delta the stream is taken behind the branch, else before it."""
    layer: int
    branch: Literal["attention", "mlp"]
    first: int
    tokens: int

    @property
    def name(self) -> str:
        """Name of the capture: `smollm2-layer22-attention-add`."""
        return f"{MODEL}-layer{self.layer}-{self.branch}-{self.kind}"

    @property
    def positions(self) -> slice:
        """Positions of the call's tokens in the text."""
        return slice(self.first, self.first + self.tokens)

    @property
    def valid(self) -> int:
        """How many snapshots count: those of the layers before this one."""
        return len(range(0, self.layer, SNAPSHOT_EVERY))


SPOTS = (
    Spot("mix", 29, "mlp", first=0, tokens=16),
    Spot("add", 22, "attention", first=22, tokens=18),
    Spot("add_write", 16, "mlp", first=44, tokens=20),
)
"""Behind the last layer, the first token included; amid a layer; where the sum is the stream of a snapshot layer."""


def missing_model() -> str:
    """Why the model cannot be run here; empty when it can."""
    return MODELS[MODEL].missing()


def record_residuals(text_path: str | Path, out: str | Path, *, replace: bool = False) -> Path:
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
    reading, revision = read_model(source, text.decode("utf-8"))
    drafts = [residual_draft(reading, spot, source.model, revision) for spot in SPOTS]
    note = (
        f"Real streams of {source.model}; the score weight is drawn from seed {SEED}. Recorded with {recorded_with()}."
    )
    return write_set(target, OP, drafts, texts={TEXT_FILE: text}, note=note, replace=replace)


def read_model(source: SourceModel, text: str) -> tuple[StreamReading, str]:
    """Run the model over the first `TOKENS` tokens of a text in FP32 on the CPU.

    Returns:
        What flowed through it, and the revision of its file in words.
    Raises:
        ParameterError: the text is too short.
    """
    model, ids, revision = load_model(source, text, TOKENS)
    return read_streams(model, ids), revision


def load_model(source: SourceModel, text: str, tokens: int) -> tuple[Any, torch.Tensor, str]:
    """A model's decoder in FP32 on the CPU, and what it is to read.

    Returns:
        The decoder, the ids of the text's first `tokens` tokens [1, tokens], and the revision of the model's file in words.
    Raises:
        ParameterError: the text is too short.
        UnavailableError: the model cannot be run here.
    """
    if missing := source.missing():
        raise UnavailableError("captures", missing)
    # transformers imports Triton, and Triton reads TRITON_INTERPRET when it is imported.
    runtime.use_interpreter_on_cpu()
    path, revision = source.gguf()
    transformers = gemma.loaded_module("transformers")
    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name, "local_files_only": True}
    ids = transformers.AutoTokenizer.from_pretrained(**place)(text, return_tensors="pt").input_ids
    if ids.shape[1] < tokens:
        reason = Reason("text", f"{ids.shape[1]} tokens", f"at least {tokens}", "Give a longer text.")
        raise ParameterError("captures", [reason])
    model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval().model
    return model, ids[:, :tokens], revision


def recorded_with() -> str:
    """Versions of what reads a model, for the manifest's note."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "gguf"))


def read_streams(model: Any, ids: torch.Tensor) -> StreamReading:
    """Run a decoder over one text, and keep its streams and what is added to them.

    Args:
        model: called as `model(ids, use_cache=False)`; its `layers` have `self_attn` and `mlp`, whose results are added
            to the stream as they are, and a norm before each (`input_layernorm`, `post_attention_layernorm`); its last
            norm is `norm`.
        ids: [1, T] token ids.
    """
    modules = {
        "streams": list(model.layers),
        "attention": [layer.self_attn for layer in model.layers],
        "mlp": [layer.mlp for layer in model.layers],
    }
    kept = read_outputs(model, ids, modules)
    norms = [norm for layer in model.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    return StreamReading(
        **kept,
        norms=torch.stack([norm.weight.detach().float() for norm in (*norms, model.norm)]),
        epsilon=float(model.config.rms_norm_eps),
    )


def read_outputs(model: Any, ids: torch.Tensor, modules: Mapping[str, Sequence[Any]]) -> dict[str, torch.Tensor]:
    """Run a decoder over one text, and keep what some of its modules return.

    Args:
        model: called as `model(ids, use_cache=False)`.
        ids: [1, T] token ids.
        modules: name to modules of the model, in the order in which it calls them.
    Returns:
        Name to [modules, T, D], FP32.
    """
    kept: dict[str, list[torch.Tensor]] = {name: [] for name in modules}
    hooks = [module.register_forward_hook(_keeper(kept[name])) for name, group in modules.items() for module in group]
    try:
        with torch.inference_mode():
            model(ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.stack(found) for name, found in kept.items()}


def _keeper(kept: list[torch.Tensor]) -> Callable[..., None]:
    def keep(module: Any, arguments: tuple[Any, ...], output: Any) -> None:
        # Attention returns its weights too, and so do layers of older releases.
        tensor = output if isinstance(output, torch.Tensor) else output[0]
        kept.append(tensor[0].detach().float().clone())

    return keep


def residual_draft(reading: StreamReading, spot: Spot, model: str, revision: str) -> CaptureDraft:
    """The call at one place of a reading, on its way to disk.

    Args:
        reading: of at least the layers and tokens that the spot names.
        spot: one of `SPOTS`.
        model, revision: what the manifest says of the model.
    """
    call = _call(reading, spot)
    snapshots = range(0, len(reading.streams), SNAPSHOT_EVERY)
    return CaptureDraft(
        name=spot.name,
        kind="real",
        call=call,
        source=Source(
            model=model,
            revision=revision,
            text=f"{TEXT_FILE}, first {TOKENS} tokens",
            layers=(*snapshots, spot.layer),
            positions=tuple(range(spot.first, spot.first + spot.tokens)),
        ),
        licence=LICENCE,
        recorded=RECORDED,
        folded=FOLDED,
    )


def _call(reading: StreamReading, spot: Spot) -> Call:
    add, write = KINDS[spot.kind]
    before, delta, out_weight = _branch(reading, spot)
    prefix = before if add else before + delta
    inputs = {
        "bank": _bank(reading, spot).bfloat16(),
        "prefix": prefix.bfloat16(),
        "delta": delta.bfloat16(),
        "score_weight": torch.randn(len(out_weight), generator=generator_of(OP, spot.name, SEED, "cpu")),
        "out_weight": out_weight.clone(),
    }
    scalars: dict[str, Scalar] = {
        "valid": spot.valid,
        "write_prefix": write,
        "add_delta": add,
        "epsilon": reading.epsilon,
    }
    outputs = {"out": torch.zeros_like(inputs["prefix"]), **{n: inputs[n].clone() for n in ("bank", "prefix")}}
    call = Call(OP, inputs, scalars, outputs, label=spot.name)
    scale = SPREAD / float(scores(call).std(1).median())
    inputs["score_weight"] *= scale
    T, NB, D = inputs["bank"].shape
    axes = {"T": T, "NB": NB, "D": D, "valid": spot.valid, "kind": spot.kind, "branch": spot.branch}
    drawn = {"score_weight": {"seed": SEED, "scale": scale}}
    call.facts.update({**axes, "drawn": drawn, "effective_rows": _spread_over_tokens(effective_rows(call))})
    return call


def _branch(reading: StreamReading, spot: Spot) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The stream before the spot's branch [T, D], what the branch adds [T, D], and the next norm's weight [D]."""
    at, layer = spot.positions, spot.layer
    stream, attention = reading.streams[layer - 1, at], reading.attention[layer, at]
    if spot.branch == "attention":
        return stream, attention, reading.norms[2 * layer + 1]
    return stream + attention, reading.mlp[layer, at], reading.norms[2 * layer + 2]


def _bank(reading: StreamReading, spot: Spot) -> torch.Tensor:
    """[T, NB, D]: the valid snapshots of the spot's tokens; in the other places those of as many tokens before them."""
    snapshots = reading.streams[::SNAPSHOT_EVERY].transpose(0, 1)
    bank = snapshots[spot.positions].clone(memory_format=torch.contiguous_format)
    if spot.valid < bank.shape[1]:
        bank[:, spot.valid :] = snapshots[spot.first - spot.tokens : spot.first, spot.valid :]
    return bank


def scores(call: Call) -> torch.Tensor:
    """[T, valid + 1] FP64 scores of a call's rows, before the softmax."""
    rows = oracle.rows_of(call.inputs["bank"], oracle.stream(call), oracle.valid_of(call)).double()
    return oracle.rms_norm(rows, call.inputs["score_weight"], oracle.epsilon_of(call)).sum(-1)


def effective_rows(call: Call) -> torch.Tensor:
    """[T] over how many rows each token's softmax is spread: 1 / Σ p², from 1 (one-hot) to valid + 1 (flat)."""
    return 1.0 / torch.softmax(scores(call), -1).square().sum(-1)


def _spread_over_tokens(values: torch.Tensor) -> dict[str, float]:
    return {"min": float(values.min()), "median": float(values.median()), "max": float(values.max())}
