"""The twenty NVFP4 captures: how they are made from an MLP, and what the committed set holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kda_lab.captures import nvfp4_operands, nvfp4_record
from kda_lab.captures.agreement import relative_l2
from kda_lab.captures.nvfp4_models import MODELS, MlpReading
from kda_lab.captures.store import CaptureSet
from kda_lab.errors import ParameterError, UnavailableError
from kda_lab.ops.nvfp4.quantise import quantise
from kda_lab.ops.registry import load_op

COMMITTED = Path(__file__).parents[2] / "data" / "captures" / "nvfp4.gemm"
QSA_TEXT = COMMITTED.parent / "qsa.packed_decode" / "text.txt"
SHAPES = {
    "smollm2_gate_up": (3072, 576),
    "smollm2_down": (576, 1536),
    "gemma3_gate_up": (4096, 640),
    "gemma3_down": (640, 2048),
}
NAMES = [f"{product}-M{m}" for product in SHAPES for m in (1, 2, 4, 8, 9)]
LAYERS = {"smollm2": 15, "gemma3": 9}
MAX_SET_BYTES = 19_000_000


@pytest.fixture
def reading() -> MlpReading:
    """A random MLP, 64 wide and 96 deep, over 12 positions; up is four times smaller than gate."""
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    inputs = {"gate_up": draw(12, 64), "down": draw(12, 96)}
    return MlpReading(draw(96, 64), draw(96, 64) / 4, draw(64, 96), inputs, {"gate_up": 4.0, "down": 2.0}, "1", {})


def test_the_drafts_are_ten_calls_of_one_layer(tmp_path: Path, reading: MlpReading) -> None:
    """Names, shapes, positions; the whole set verifies and keeps each weight once."""
    drafts = {draft.name: draft for draft in nvfp4_record.nvfp4_drafts(MODELS["smollm2"], reading)}
    assert list(drafts) == nvfp4_record.capture_names(["smollm2"])
    for name, draft in drafts.items():
        m = int(name.rpartition("M")[2])
        N, K = (192, 64) if "gate_up" in name else (64, 96)
        assert {axis: draft.call.facts[axis] for axis in "MNK"} == {"M": m, "N": N, "K": K}
        assert draft.source.positions == tuple(range(12 - m, 12)) and draft.source.layers == (15,)
    path = nvfp4_record.write_nvfp4({"smollm2": reading}, list(drafts.values()), b"read", tmp_path / "set", False)
    captures = CaptureSet.open(path)
    assert captures.verify() == []
    assert len({captures.entry(name).tensors["weight"].strided.storage for name in drafts}) == 2


def test_a_draft_multiplies_what_the_layer_multiplies(reading: MlpReading) -> None:
    """Dequantised, the operands are the last rows of the input and [gate; up], up to the error of the format."""
    draft = {d.name: d for d in nvfp4_record.nvfp4_drafts(MODELS["smollm2"], reading)}["smollm2_gate_up-M4"]
    call = draft.call
    weight = torch.cat([reading.gate, reading.up]).double()
    x_scale, w_scale = 4.0 / 2688, float(weight.abs().amax()) / 2688
    assert float(call.inputs["alpha"]) == pytest.approx(x_scale * w_scale, rel=1e-6)
    assert 0.07 < relative_l2(nvfp4_operands.activation(call).values * x_scale, reading.inputs["gate_up"][-4:]) < 0.12
    # One global scale for both: the smaller partition is as exact as the larger one.
    for part, values in ((reading.gate, slice(0, 96)), (reading.up, slice(96, 192))):
        assert 0.07 < relative_l2(nvfp4_operands.weight(call).values[values] * w_scale, part) < 0.12
    errors = call.facts["quantisation_error"]
    assert list(errors) == ["x", "weight", "product"] and 0.1 < errors["product"] < 0.2
    product = reading.inputs["gate_up"][-4:].double() @ weight.t()
    assert errors["product"] == pytest.approx(relative_l2(draft.pinned["out"], product), rel=1e-2)


def test_activations_are_quantised_with_the_calibrated_scale(reading: MlpReading) -> None:
    """A row keeps its codes whatever stands beside it, and a value above the calibrated amax saturates."""
    drafts = {d.name: d for d in nvfp4_record.nvfp4_drafts(MODELS["smollm2"], reading)}
    one, nine = (nvfp4_operands.activation(drafts[f"smollm2_down-M{m}"].call) for m in (1, 9))
    assert torch.equal(one.packed[0], nine.packed[8]) and torch.equal(one.scales[0], nine.scales[8])
    assert torch.equal(one.packed, quantise(reading.inputs["down"][-1:], 2688 / 2.0).packed)
    assert float(nine.values.abs().amax()) == 2688 < float(reading.inputs["down"].abs().amax()) * 1344


def test_the_emulation_rounds_once() -> None:
    """code · scale is exact in BF16, so only the sum and the store round."""
    x, weight = torch.tensor([[448.0 * 6, 0.5]]), torch.tensor([[3.0, 2.0**-9]])
    out = nvfp4_record.emulated_product(x, weight, torch.tensor([0.5]))
    assert out.dtype == torch.float32 and float(out) == (448 * 6 * 3 + 2.0**-10) / 2


def test_the_text_falls_into_a_recorded_and_a_calibration_part() -> None:
    """Nothing is lost; a text without a second part is refused."""
    read, calibration = nvfp4_record.split_text("some words\n   Apache License\nmore")
    assert (read, calibration) == ("some words", "\n   Apache License\nmore")
    for text in ("some words", "Apache License at once"):
        with pytest.raises(ParameterError, match=r"text is .*; allowed: words, then a line with 'Apache License'"):
            nvfp4_record.split_text(text)


def test_recording_refuses_wrong_parameters_before_a_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All reasons at once; then a model that is missing."""
    text = tmp_path / "text.txt"
    text.write_text("words\nApache License")
    words = (
        r"models is \['gpt'\]; allowed: smollm2, gemma3. out is .*; allowed: a folder that does not exist. .*replace"
    )
    with pytest.raises(ParameterError, match=words):
        nvfp4_record.record_nvfp4(text, tmp_path, models=["gpt"], progress=False)
    with pytest.raises(ParameterError, match=r"models is \[\]; allowed: some of smollm2, gemma3, each once"):
        nvfp4_record.record_nvfp4(text, tmp_path / "set", models=[], progress=False)
    absent = replace(MODELS["gemma3"], missing=lambda: "unavailable, because of the test")
    monkeypatch.setattr(nvfp4_record, "MODELS", {"gemma3": absent})
    with pytest.raises(UnavailableError, match="gemma3: unavailable, because of the test"):
        nvfp4_record.record_nvfp4(text, tmp_path / "set", models=["gemma3"], progress=False)


def test_a_recording_reads_both_parts_and_writes_the_set(
    tmp_path: Path, reading: MlpReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is given the recorded part as text and the rest for calibration; the text travels with the set."""
    given = []
    monkeypatch.setattr(nvfp4_record, "missing_models", lambda: {"gemma3": "absent"})
    monkeypatch.setattr(
        nvfp4_record, "read_mlp", lambda source, *rest: given.append((source.name, *rest[:3])) or reading
    )
    text = tmp_path / "text.txt"
    text.write_text("words\nApache License")
    path = nvfp4_record.record_nvfp4(text, tmp_path / "set", models=["smollm2"], progress=False)
    assert given == [("smollm2", "words", "\nApache License", 1024)]
    assert (path / "text.txt").read_text() == text.read_text()
    assert CaptureSet.open(path).names() == NAMES[:10]


@pytest.fixture(scope="module")
def committed() -> CaptureSet:
    """The set in data/captures."""
    return CaptureSet.open(COMMITTED)


def test_the_committed_set_is_whole_and_small(committed: CaptureSet) -> None:
    """Every hash agrees, the folder stays under 19 MB, and the text is the one that QSA's captures read."""
    assert committed.op == "nvfp4.gemm" and committed.names() == NAMES == nvfp4_record.capture_names()
    assert committed.verify() == []
    assert 1_000_000 < sum(path.stat().st_size for path in COMMITTED.iterdir()) < MAX_SET_BYTES
    assert {path.name for path in COMMITTED.iterdir()} == {*committed.manifest.files, "manifest.json"}
    assert (COMMITTED / "text.txt").read_bytes() == QSA_TEXT.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_capture_is_the_real_call_it_claims_to_be(committed: CaptureSet, name: str) -> None:
    """Shapes, strides, dtypes, scalars and provenance are those of the op and of the model."""
    capture, (product, _, m) = committed.load(name), name.partition("-M")
    (N, K), M, inputs = SHAPES[product], int(m), capture.call.inputs
    assert capture.kind == "real" and {axis: capture.call.facts[axis] for axis in "MNK"} == {"M": M, "N": N, "K": K}
    shapes = {n: (tuple(t.shape), t.stride()) for n, t in inputs.items()}
    rows = -(-N // 128) * 128
    assert shapes == {
        "x_fp4": ((M, K // 2), (K // 2, 1)),
        "weight": ((K // 2, N), (1, K // 2)),
        "x_sf": ((128, K // 16), (K // 16, 1)),
        "weight_sf": ((K // 16, rows), (1, K // 16)),
        "alpha": ((1,), (1,)),
    }
    assert {inputs[n].dtype for n in list(inputs)[:4]} == {torch.uint8} and inputs["alpha"].dtype == torch.float32
    assert capture.call.scalars == {"out_dtype": "bfloat16"}
    assert capture.call.outputs["out"].shape == (M, N) and capture.call.outputs["out"].dtype == torch.bfloat16
    entry, model = capture.entry, product.partition("_")[0]
    assert entry.source.layers == (LAYERS[model],) and entry.source.positions == tuple(range(1024 - M, 1024))
    assert "sha256" in entry.source.revision and entry.source.model == MODELS[model].model
    assert (entry.folded, entry.recorded) == (nvfp4_record.FOLDED, nvfp4_record.RECORDED)
    assert {"smollm2": "Apache License", "gemma3": "Gemma Terms of Use"}[model] in entry.licence
    assert entry.producer is not None and "not the output of an FP4 tensor core" in entry.producer.name
    assert all("low nibble the even k" in entry.tensors[n].encoding for n in ("x_fp4", "weight"))


@pytest.mark.parametrize("name", NAMES)
def test_a_pinned_output_is_within_the_gate_of_the_oracle(committed: CaptureSet, name: str) -> None:
    """The gate is 2e-3; BF16 rounding of the output alone is about 1.65e-3."""
    capture = committed.load(name)
    error = relative_l2(capture.pinned["out"], load_op(committed.op).oracle.oracle_fp32(capture.call)["out"])
    assert 1.4e-3 < error <= 2e-3


@pytest.mark.parametrize("name", NAMES)
def test_what_quantising_cost_is_what_the_format_costs(committed: CaptureSet, name: str) -> None:
    """About 9.5 % an operand and up to 14 % the product: far above any gate of a kernel."""
    errors = committed.entry(name).facts["quantisation_error"]
    assert isinstance(errors, dict) and 0.08 < errors["x"] < 0.1 and 0.09 < errors["weight"] < 0.1
    assert 0.09 < errors["product"] < 0.15


@pytest.mark.parametrize("product", SHAPES)
def test_the_rows_of_a_small_batch_are_the_last_rows_of_the_large_one(committed: CaptureSet, product: str) -> None:
    """One text, one calibration: codes, scales and pinned outputs of M=1 to 8 lie inside M=9."""
    nine = committed.load(f"{product}-M9")
    whole = nvfp4_operands.activation(nine.call)
    for m in (1, 2, 4, 8):
        capture = committed.load(f"{product}-M{m}")
        part = nvfp4_operands.activation(capture.call)
        assert torch.equal(part.packed, whole.packed[-m:]) and torch.equal(part.scales, whole.scales[-m:])
        assert torch.equal(capture.call.inputs["weight"], nine.call.inputs["weight"])
        assert relative_l2(capture.pinned["out"], nine.pinned["out"][-m:]) < 1e-3


def test_the_names_of_one_model_are_its_own_ten() -> None:
    """In the order of the whole set."""
    assert nvfp4_record.capture_names(["gemma3"]) == NAMES[10:]
