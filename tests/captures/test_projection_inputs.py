"""Real inputs of attention projections: how they are taken from a model, and what the committed set holds."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab.captures import projection_inputs
from kda_lab.captures.nvfp4_models import MODELS
from kda_lab.captures.projection_inputs import SPOTS, TOKENS, Spot
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError, UnavailableError

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "data" / "captures" / "projection.inputs.smollm"
TEXT = ROOT / "data" / "captures" / "nvfp4.gemm" / "text.txt"
NAMES = ["smollm2-layer0", "smollm2-layer15", "smollm2-layer29"]
WIDTH, LAYERS = 8, 30
MOST_BYTES = 700_000


class Layer(torch.nn.Module):
    """Norm and attention, which keeps what it is given; then a second norm, whose result is no input of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.self_attn = torch.nn.Linear(WIDTH, WIDTH)
        self.given = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.given = self.input_layernorm(x)
        x = x + self.self_attn(self.given)
        return x + self.post_attention_layernorm(x).tanh()


class Decoder(torch.nn.Module):
    """30 layers of random weights; no two norms have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        for layer in self.layers:
            layer.input_layernorm.weight.data.uniform_(0.5, 1.5)

    def forward(self, ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """A small decoder in the place of the real model; it refuses a text other than `some words`."""
    torch.manual_seed(3)
    made, ids = Decoder(), torch.arange(TOKENS)[None] % 50

    def load(source: object, text: str, tokens: int) -> tuple[Any, torch.Tensor, str]:
        assert (text, tokens) == ("some words", TOKENS)
        return made, ids, "revision 1"

    monkeypatch.setattr(projection_inputs, "load_model", load)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0")
    return made


def test_a_recording_holds_what_attention_is_given(model: Decoder, tmp_path: Path) -> None:
    """x of every capture is the result of its layer's input norm, rounded once; text and revision travel; nothing is replaced."""
    text = tmp_path / "text.txt"
    text.write_text("some words")
    found = CaptureSet.open(projection_inputs.record_inputs(text, tmp_path / "set"))
    assert found.names() == NAMES and found.verify() == []
    for spot, name in zip(SPOTS, NAMES, strict=True):
        capture = found.load(name)
        given = model.layers[spot.layer].given[0, : spot.tokens].detach()
        assert torch.equal(capture.call.inputs["x"], given.bfloat16())
        assert capture.entry.source.revision == "revision 1"
    assert (found.path / "text.txt").read_text() == "some words"
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(ParameterError, match=r"out is .*; allowed: a folder that does not exist. Pass replace=True"):
        projection_inputs.record_inputs(text, tmp_path / "set")
    projection_inputs.record_inputs(text, tmp_path / "set", replace=True)


def test_a_model_that_cannot_be_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written."""
    absent = replace(MODELS["smollm2"], missing=lambda: "unavailable, because of the test")
    monkeypatch.setattr(projection_inputs, "MODELS", {"smollm2": absent})
    with pytest.raises(UnavailableError, match="unavailable, because of the test"):
        projection_inputs.record_inputs(TEXT, tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.fixture(scope="module")
def committed() -> CaptureSet:
    """The set in data/captures."""
    return CaptureSet.open(COMMITTED)


def test_the_committed_set_is_whole_and_small(committed: CaptureSet) -> None:
    """Every hash agrees, nothing else lies in the folder, and the text is the one that the other real captures read."""
    assert committed.op == projection_inputs.OP and committed.names() == NAMES
    assert committed.verify() == []
    assert {path.name for path in COMMITTED.iterdir()} == {*committed.manifest.files, "manifest.json"}
    assert sum(path.stat().st_size for path in COMMITTED.iterdir()) < MOST_BYTES
    assert (COMMITTED / "text.txt").read_bytes() == TEXT.read_bytes()


@pytest.mark.parametrize("spot", SPOTS, ids=NAMES)
def test_a_committed_capture_says_where_it_is_from(committed: CaptureSet, spot: Spot) -> None:
    """Shape, layer, positions, model and licence; the words of the manifest are those of the recorder."""
    entry = committed.load(spot.name).entry
    x = committed.load(spot.name).call.inputs["x"]
    assert (tuple(x.shape), x.dtype, x.is_contiguous()) == ((spot.tokens, 576), torch.bfloat16, True)
    assert entry.kind == "real" and not entry.pinned
    assert entry.source.layers == (spot.layer,) and entry.source.positions == tuple(range(spot.tokens))
    assert "SmolLM2-135M" in entry.source.model and "sha256" in entry.source.revision
    assert (entry.recorded, entry.folded) == (projection_inputs.RECORDED, projection_inputs.FOLDED)
    assert "are drawn, not the model's" in entry.folded and "Apache License" in entry.licence


@pytest.mark.parametrize("name", NAMES)
def test_real_rows_have_channels_that_stand_out(committed: CaptureSet, name: str) -> None:
    """One of 576 channels holds more than a fifth of the energy, and the largest magnitude is 15 times the root mean square."""
    x = committed.load(name).call.inputs["x"].double()
    channels = x.square().mean(0)
    assert float(channels.max() / channels.sum()) > 0.2
    assert float(x.abs().max() / x.square().mean().sqrt()) > 15


def test_rows_of_the_middle_layer_differ(committed: CaptureSet) -> None:
    """All 256, so that a replay which kept its old rows shows; at the first layer equal tokens have equal rows."""
    assert len(committed.load(NAMES[1]).call.inputs["x"].unique(dim=0)) == 256
    assert len(committed.load(NAMES[0]).call.inputs["x"].unique(dim=0)) < 128
