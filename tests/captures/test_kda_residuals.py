"""Real captures of attention residuals: how they are taken from a model, and what the committed set holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kda_lab.captures import kda_residuals
from kda_lab.captures.kda_residuals import SPOTS, TOKENS, Spot, StreamReading, read_streams, residual_draft
from kda_lab.captures.nvfp4_models import MODELS
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError, UnavailableError
from kda_lab.ops.arms import candidate_arm
from kda_lab.ops.kda_attn_residuals import oracle
from kda_lab.ops.kda_attn_residuals.cases import KINDS
from kda_lab.ops.registry import load_op
from kda_lab.verify import replay
from kda_lab.verify.launching import one_thread
from kda_lab.verify.metrics import rel_l2

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "data" / "captures" / "kda.attn_residuals.smollm"
TEXT = ROOT / "data" / "captures" / "nvfp4.gemm" / "text.txt"
CANDIDATE = ROOT / "notebooks" / "candidates" / "kda.attn_residuals" / "single_pass.py"
OP = load_op("kda.attn_residuals")
NAMES = [spot.name for spot in SPOTS]
WIDTH, LAYERS = 16, 30
MOST_BYTES = 720_000
CPU = torch.device("cpu")


class Attention(torch.nn.Linear):
    """Returns its result and no weights, as attention does."""

    def forward(self, x: torch.Tensor) -> Any:
        return torch.tanh(super().forward(x).cumsum(1)), None


class Layer(torch.nn.Module):
    """Norm, attention, norm, MLP, each added to the stream."""

    def __init__(self, as_tuple: bool) -> None:
        super().__init__()
        self.input_layernorm = torch.nn.RMSNorm(WIDTH)
        self.post_attention_layernorm = torch.nn.RMSNorm(WIDTH)
        self.self_attn, self.mlp = Attention(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.as_tuple = as_tuple

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.self_attn(self.input_layernorm(x))[0]
        x = x + self.mlp(self.post_attention_layernorm(x))
        return (x,) if self.as_tuple else x


class Decoder(torch.nn.Module):
    """A decoder of random weights; every other layer returns a tuple, as releases of transformers did."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(50, WIDTH), torch.nn.RMSNorm(WIDTH)
        self.layers = torch.nn.ModuleList(Layer(index % 2 == 0) for index in range(LAYERS))
        self.config = SimpleNamespace(rms_norm_eps=1e-5)

    def forward(self, ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.norm(x)


@pytest.fixture(scope="module")
def model() -> Decoder:
    """30 layers, 16 wide; no two norms have one weight."""
    torch.manual_seed(3)
    made = Decoder()
    for module in made.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.weight.data.uniform_(0.5, 1.5)
    return made


@pytest.fixture(scope="module")
def reading(model: Decoder) -> StreamReading:
    """What flows through it over 64 tokens."""
    return read_streams(model, torch.arange(TOKENS)[None] % 50)


def test_a_reading_is_what_flows_through_the_model(model: Decoder, reading: StreamReading) -> None:
    """Each stream is the one before it and both branches; the first begins with the embedding; no hook stays."""
    assert reading.streams.shape == reading.attention.shape == reading.mlp.shape == (LAYERS, TOKENS, WIDTH)
    first = model.embedding(torch.arange(TOKENS) % 50).detach()
    before = torch.cat([first[None], reading.streams[:-1]])
    assert torch.equal(before + reading.attention + reading.mlp, reading.streams)
    assert torch.equal(reading.norms[2 * 22 + 1], model.layers[22].post_attention_layernorm.weight)
    assert torch.equal(reading.norms[-1], model.norm.weight) and len(reading.norms) == 2 * LAYERS + 1
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("spot", SPOTS, ids=NAMES)
def test_a_draft_holds_the_streams_of_its_place(model: Decoder, reading: StreamReading, spot: Spot) -> None:
    """Snapshots, prefix, delta and norm are those of the spot; what the op leaves is the stream behind the branch."""
    call = residual_draft(reading, spot, "a model", "1").call
    at, inputs, valid = spot.positions, call.inputs, spot.valid
    snapshots = reading.streams[:: kda_residuals.SNAPSHOT_EVERY].transpose(0, 1).bfloat16()
    assert torch.equal(inputs["bank"][:, :valid], snapshots[at, :valid])
    assert not torch.equal(inputs["bank"][:, valid:], snapshots[at, valid:]) or valid == snapshots.shape[1]
    added = reading.attention[spot.layer] if spot.branch == "attention" else reading.mlp[spot.layer]
    assert torch.equal(inputs["delta"], added[at].bfloat16())
    layer = model.layers[spot.layer]
    norm = layer.post_attention_layernorm if spot.branch == "attention" else None
    if norm is None:
        norm = model.norm if spot.layer == LAYERS - 1 else model.layers[spot.layer + 1].input_layernorm
    assert torch.equal(inputs["out_weight"], norm.weight)
    behind = reading.streams[spot.layer, at] - (reading.mlp[spot.layer, at] if spot.branch == "attention" else 0)
    left = oracle.oracle_fp64(call)
    assert rel_l2(left["prefix"], behind) < 4e-3
    if call.scalars["write_prefix"]:
        # Two roundings to BF16 in the place of one: the snapshot that a later layer would read.
        assert rel_l2(left["bank"][:, valid], snapshots[at, valid]) < 4e-3


def test_the_score_weight_is_drawn_from_its_seed_and_scaled(reading: StreamReading) -> None:
    """The same twice, another one for each capture; scores spread as they should in the median."""
    drafts = [residual_draft(reading, spot, "a model", "1") for spot in (*SPOTS, SPOTS[0])]
    weights = [draft.call.inputs["score_weight"] for draft in drafts]
    assert torch.equal(weights[0], weights[3]) and not torch.equal(weights[0] / weights[1], weights[0] / weights[2])
    for draft in drafts:
        assert float(kda_residuals.scores(draft.call).std(1).median()) == pytest.approx(kda_residuals.SPREAD, rel=1e-5)


def test_rows_that_share_the_softmax_are_counted(reading: StreamReading) -> None:
    """A weight of zero gives all rows one score; a large one leaves one row."""
    call = residual_draft(reading, SPOTS[1], "a model", "1").call
    flat = call.with_inputs(score_weight=torch.zeros(WIDTH))
    assert torch.allclose(kda_residuals.effective_rows(flat), torch.tensor(7.0).double())
    steep = call.with_inputs(score_weight=call.inputs["score_weight"] * 1e6)
    assert torch.allclose(kda_residuals.effective_rows(steep), torch.tensor(1.0).double())


def test_a_recording_writes_the_set(tmp_path: Path, reading: StreamReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is handed to the model and travels with the set, which verifies; an existing one is kept."""
    source = replace(MODELS["smollm2"], missing=lambda: "")
    given: list[str] = []
    monkeypatch.setattr(kda_residuals, "MODELS", {"smollm2": source})
    monkeypatch.setattr(kda_residuals, "read_model", lambda source, text: given.append(text) or (reading, "1"))
    monkeypatch.setattr(kda_residuals.importlib.metadata, "version", lambda name: "0")
    text = tmp_path / "text.txt"
    text.write_text("some words")
    found = CaptureSet.open(kda_residuals.record_residuals(text, tmp_path / "set"))
    assert given == ["some words"] and (found.path / "text.txt").read_text() == "some words"
    assert found.names() == NAMES and found.verify() == []
    with pytest.raises(ParameterError, match=r"out is .*; allowed: a folder that does not exist. Pass replace=True"):
        kda_residuals.record_residuals(text, tmp_path / "set")
    kda_residuals.record_residuals(text, tmp_path / "set", replace=True)


def test_a_model_that_cannot_be_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written."""
    absent = replace(MODELS["smollm2"], missing=lambda: "unavailable, because of the test")
    monkeypatch.setattr(kda_residuals, "MODELS", {"smollm2": absent})
    with pytest.raises(UnavailableError, match="unavailable, because of the test"):
        kda_residuals.record_residuals(TEXT, tmp_path / "set")
    assert kda_residuals.missing_model() == "unavailable, because of the test" and not (tmp_path / "set").exists()


def test_a_short_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says how many tokens it has, before the weights are loaded."""
    tokens = SimpleNamespace(input_ids=torch.zeros(1, 5, dtype=torch.long))
    tokenizer = SimpleNamespace(from_pretrained=lambda **place: lambda text, return_tensors: tokens)
    monkeypatch.setattr(
        kda_residuals.gemma, "loaded_module", lambda name: SimpleNamespace(AutoTokenizer=tokenizer), raising=True
    )
    source = replace(MODELS["smollm2"], gguf=lambda: (Path("model.gguf"), "1"))
    with pytest.raises(ParameterError, match=r"text is 5 tokens; allowed: at least 64. Give a longer text"):
        kda_residuals.read_model(source, "words")


@pytest.mark.capture
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_llama_adds_its_branches_to_the_stream() -> None:
    """The model's own class: streams are its hidden states, and a layer is nothing but its two branches."""
    from transformers import LlamaConfig, LlamaModel  # lazy: transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    llama = LlamaModel(LlamaConfig(vocab_size=50, num_hidden_layers=3, **sizes)).eval()
    ids = torch.arange(9)[None]
    found = read_streams(llama, ids)
    with torch.inference_mode():
        states = llama(ids, use_cache=False, output_hidden_states=True).hidden_states
    assert torch.equal(found.streams[:2], torch.stack([state[0] for state in states[1:3]]))
    assert torch.equal(states[2][0] + found.attention[2] + found.mlp[2], found.streams[2])
    assert found.norms.shape == (7, 32) and found.epsilon == llama.config.rms_norm_eps


@pytest.fixture(scope="module")
def committed() -> CaptureSet:
    """The set in data/captures."""
    return CaptureSet.open(COMMITTED)


def test_the_committed_set_is_whole_and_small(committed: CaptureSet) -> None:
    """Every hash agrees, nothing else lies in the folder, and the text is the one that the other real captures read."""
    assert committed.op == "kda.attn_residuals" and committed.names() == NAMES
    assert committed.verify() == []
    assert {path.name for path in COMMITTED.iterdir()} == {*committed.manifest.files, "manifest.json"}
    assert sum(path.stat().st_size for path in COMMITTED.iterdir()) < MOST_BYTES
    assert (COMMITTED / "text.txt").read_bytes() == TEXT.read_bytes()


@pytest.mark.parametrize("spot", SPOTS, ids=NAMES)
def test_a_committed_capture_says_what_is_real_and_what_is_drawn(committed: CaptureSet, spot: Spot) -> None:
    """Shapes, scalars and provenance are those of the model; the score weight is named as drawn, with its seed."""
    capture = committed.load(spot.name)
    entry, inputs = capture.entry, capture.call.inputs
    assert capture.kind == "real" and entry.seed is None and not entry.pinned
    assert {name: (tuple(t.shape), t.dtype) for name, t in inputs.items()} == {
        "bank": ((spot.tokens, 8, 576), torch.bfloat16),
        **dict.fromkeys(("prefix", "delta"), ((spot.tokens, 576), torch.bfloat16)),
        **dict.fromkeys(("score_weight", "out_weight"), ((576,), torch.float32)),
    }
    assert all(tensor.is_contiguous() for tensor in inputs.values())
    add, write = KINDS[spot.kind]
    epsilon = pytest.approx(1e-5)
    assert capture.call.scalars == {
        "valid": spot.valid,
        "write_prefix": write,
        "add_delta": add,
        "epsilon": epsilon,
    }
    assert entry.source.layers == (*range(0, 30, 4), spot.layer) and "sha256" in entry.source.revision
    assert entry.source.positions == tuple(range(spot.first, spot.first + spot.tokens))
    assert (entry.recorded, entry.folded) == (kda_residuals.RECORDED, kda_residuals.FOLDED)
    assert "real weights of this op do not exist" in entry.folded and "Apache License" in entry.licence
    assert list(entry.facts["drawn"]) == ["score_weight"]
    assert entry.facts["drawn"]["score_weight"]["seed"] == kda_residuals.SEED


@pytest.mark.parametrize("spot", SPOTS, ids=NAMES)
def test_the_softmax_is_neither_flat_nor_one_hot(committed: CaptureSet, spot: Spot) -> None:
    """Of nine tokens in ten it is spread over 1.5 rows or more, and over one fewer than there are or less."""
    call = committed.load(spot.name).call
    rows = kda_residuals.effective_rows(call)
    assert float(((rows >= 1.5) & (rows <= spot.valid)).double().mean()) >= 0.9
    assert call.facts["effective_rows"]["median"] == pytest.approx(float(rows.median()), rel=1e-6)


def test_real_streams_have_what_drawn_ones_lack(committed: CaptureSet) -> None:
    """The first token is far larger than the others, by few channels; the snapshots of a token resemble each other."""
    bank = committed.load(NAMES[0]).call.inputs["bank"].double()
    sizes = bank.square().mean(-1).sqrt()
    assert float(sizes[0, 4] / sizes[1:, 4].max()) > 50
    assert float(bank[0, 4].abs().max() / sizes[0, 4]) > 20
    assert float(torch.cosine_similarity(bank[:, 5], bank[:, 6], -1).min()) > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_the_emulation_is_within_the_gates_of_the_oracle(committed: CaptureSet, name: str) -> None:
    """What a right kernel returns stays below every limit on real streams: in all, by token, by element, exactly in place."""
    call = committed.load(name).call
    exact, found = oracle.oracle_fp64(call), oracle.emulate(call)
    allowed = oracle.allowance(call, exact)["out"]
    assert rel_l2(found["out"], exact["out"]) < OP.gates.ERROR
    assert max(rel_l2(a, b) for a, b in zip(found["out"], exact["out"], strict=True)) < OP.gates.ERROR
    assert bool(((found["out"].double() - exact["out"]).abs() <= allowed).all())
    assert all(torch.equal(found[n], exact[n]) for n in ("bank", "prefix"))


@pytest.mark.parametrize("name", NAMES)
def test_the_candidate_passes_every_check_of_the_referee(committed: CaptureSet, name: str) -> None:
    """Width 576 through the interpreter: poison, guards, repeated bits, changed contents, untouched slots."""
    with one_thread(CPU):
        done = replay(OP, candidate_arm(CANDIDATE), committed.load(name), CPU)
    assert done.failed == ()
