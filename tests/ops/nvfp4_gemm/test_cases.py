"""Synthetic calls, input sets, guard rows, changed and shuffled contents, edge calls of the NVFP4 GEMM."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kda_lab.errors import ParameterError
from kda_lab.ops.nvfp4 import layouts
from kda_lab.ops.nvfp4_gemm import cases, oracle
from kda_lab.ops.protocol import Call
from kda_lab.verify.metrics import rel_l2


def one(label: str, seed: int = 0) -> Call:
    shape, batch, kind = label.split("-")
    return cases.synthesise(cases.rows([shape], [int(batch[1:])], [kind])[0], seed)


def result(call: Call, **inputs: torch.Tensor) -> torch.Tensor:
    return oracle.oracle_fp64(call.with_inputs(**inputs))["out"]


@pytest.mark.parametrize("label", ["tiny_a-M1-random", "tiny_e-M129-fp32", "tiny_f-M17-any_scale", "tiny_d-M9-exact"])
def test_calls_have_the_shapes_and_strides_of_the_specification(label: str) -> None:
    """Synthetic calls and input sets alike, so that one can refill the other in place."""
    call = one(label)
    M, N, K = (call.facts[axis] for axis in "MNK")
    rows, columns, S = layouts.round_up(M, 128), layouts.round_up(N, 128), layouts.round_up(K // 16, 4)
    row = cases.rows([label.split("-")[0]], [M], [call.facts["kind"]])[0]
    for found in (call, *cases.make_sets(row, 3, 5, "cpu")):
        shapes = {name: (tuple(t.shape), t.stride(), t.dtype) for name, t in (found.inputs | found.outputs).items()}
        assert shapes == {
            "x_fp4": ((M, K // 2), (K // 2, 1), torch.uint8),
            "weight": ((K // 2, N), (1, K // 2), torch.uint8),
            "x_sf": ((rows, S), (S, 1), torch.uint8),
            "weight_sf": ((S, columns), (1, S), torch.uint8),
            "alpha": ((1,), (1,), torch.float32),
            "out": ((M, N), (N, 1), getattr(torch, call.scalars["out_dtype"])),
        }
        assert found.facts == call.facts


@pytest.mark.parametrize("kind", cases.KINDS)
def test_outputs_have_a_real_magnitude(kind: str) -> None:
    """A standard deviation of about four, from synthetic calls and from input sets."""
    row = cases.rows(["tiny_b"], [16], [kind])[0]
    for call in (cases.synthesise(row, 0), *cases.make_sets(row, 2, 0, "cpu")):
        assert 2.0 < float(result(call).std()) < 8.0


@given(st.integers(1, 300), st.sampled_from(sorted(cases.TINY_SHAPES)), st.integers(0, 3))
@settings(max_examples=25)
def test_padding_of_synthetic_scales_is_zero(M: int, shape: str, seed: int) -> None:
    """In every synthetic call and input set, whatever the geometry."""
    row = cases.rows([shape], [M], ["any_scale"])[0]
    for call in (cases.synthesise(row, seed), cases.make_sets(row, 2, seed, "cpu")[1]):
        _, N, K = (call.facts[axis] for axis in "MNK")
        assert layouts.padding_is_clean(call.inputs["x_sf"], M, K // 16)
        assert layouts.padding_is_clean(call.inputs["weight_sf"].T, N, K // 16)


def test_input_sets_differ_and_are_aligned() -> None:
    """Each set has codes and scales of its own; all start at the same offset from a multiple of 256 bytes."""
    sets = cases.make_sets(cases.rows(["tiny_f"], [3], ["random"])[0], 4, 0, "cpu")
    for name in ("x_fp4", "weight", "x_sf", "weight_sf"):
        assert len({call.inputs[name].cpu().contiguous().numpy().tobytes() for call in sets}) == 4
    for name, first in (sets[0].inputs | sets[0].outputs).items():
        starts = {(call.inputs | call.outputs)[name].data_ptr() % 256 for call in sets}
        assert starts == {first.data_ptr() % 256}


def test_another_seed_keeps_alpha_and_changes_the_rest() -> None:
    """A graph that holds alpha as a number stays right after the refill of the check behind timing."""
    row = cases.rows(["tiny_a"], [2], ["random"])[0]
    first, second = (cases.make_sets(row, 1, seed, "cpu")[0].inputs for seed in (0, 1))
    assert torch.equal(first["alpha"], second["alpha"])
    assert not any(torch.equal(first[name], second[name]) for name in first if name != "alpha")


@given(st.integers(1, 300), st.sampled_from(sorted(cases.TINY_SHAPES)))
@settings(max_examples=20)
def test_guard_rows_hold_nan_and_live_rows_stay(M: int, shape: str) -> None:
    """All padding of both containers, rows and columns, becomes NaN; live scales stay, and so does the result."""
    call = one(f"{shape}-M{M}-random")
    guarded = cases.with_guard_rows(call, 64)
    K = call.facts["K"]
    for name, rows in (("x_sf", M), ("weight_sf", call.facts["N"])):
        old, new = (c.inputs[name] if name == "x_sf" else c.inputs[name].T for c in (call, guarded))
        before, after = (layouts.unswizzle_128x4(t, *old.shape) for t in (old, new))
        assert torch.equal(before[:rows, : K // 16], after[:rows, : K // 16])
        assert (after[rows:] == 0x7F).all()
        assert (after[:, K // 16 :] == 0x7F).all()
    assert guarded.inputs["weight_sf"].stride() == call.inputs["weight_sf"].stride()
    assert torch.equal(result(guarded), result(call))


@pytest.mark.parametrize("which", cases.CHANGES)
@pytest.mark.parametrize("label", ["tiny_a-M1-random", "tiny_e-M9-fp32", "tiny_d-M5-exact"])
@pytest.mark.parametrize("is_reused", [False, True])
def test_changed_contents_have_another_answer(which: str, label: str, is_reused: bool) -> None:
    """New activations alone, or with another alpha, fit into the same buffers and change every row's result."""
    call = cases.with_guard_rows(one(label))
    new = cases.changed(call, which, 3, call if is_reused else None)
    assert set(new) == {"x_fp4", "x_sf", "alpha"} - ({"alpha"} if which == "x" else set())
    assert all((new[n].shape, new[n].dtype) == (call.inputs[n].shape, call.inputs[n].dtype) for n in new)
    assert layouts.padding_is_clean(new["x_sf"], call.facts["M"], call.facts["K"] // 16)
    assert rel_l2(result(call, **new), result(call)) > 0.3


def test_changed_alpha_has_another_sign_and_magnitude() -> None:
    """A quarter of it, negated, which keeps exact rows exact; zero becomes minus a half."""
    call = one("tiny_d-M5-exact")
    assert cases.changed(call, "alpha", 1)["alpha"].item() == -0.25 * call.inputs["alpha"].item()
    zero = call.with_inputs(alpha=torch.zeros(1))
    assert cases.changed(zero, "alpha", 1)["alpha"].item() == -0.5


@given(st.floats(2.0**-90, 2.0**90, width=32), st.booleans())
@settings(max_examples=50)
def test_changed_alpha_shows_a_rounded_alpha(alpha: float, is_negative: bool) -> None:
    """Whatever alpha was, the new one is an eighth to a quarter of it, and far from the BF16 and FP16 mantissas."""
    call = one("tiny_d-M5-random").with_inputs(alpha=torch.tensor([-alpha if is_negative else alpha]))
    new = cases.changed(call, "alpha", 1)["alpha"]
    assert (new > 0).item() == is_negative
    assert 1 / 8 <= abs(new.item()) / call.inputs["alpha"].abs().item() <= 1.01 / 4
    assert abs(new.bfloat16().item() / new.item() - 1) > 3.7e-3
    mantissa = torch.frexp(new).mantissa
    assert abs(mantissa.half().item() / mantissa.item() - 1) > 1e-4


def test_both_changes_bring_different_activations() -> None:
    """So that an arm which remembers one of them fails at the other, with real contents and with synthetic ones."""
    call = one("tiny_a-M1-random")
    for source in (None, call):
        first, second = (cases.changed(call, which, 1, source)["x_fp4"] for which in cases.CHANGES)
        assert not torch.equal(first, second)


def test_reused_activations_keep_codes_and_scales() -> None:
    """What a real capture looks like stays: the same magnitudes and scale bytes, in other places."""
    call = one("tiny_a-M4-random")
    new = cases.changed(call, "x", 1, call)
    assert torch.equal(
        (new["x_fp4"] & 0x77).flatten().sort().values, (call.inputs["x_fp4"] & 0x77).flatten().sort().values
    )
    assert torch.equal(new["x_sf"].flatten().sort().values, call.inputs["x_sf"].flatten().sort().values)


@pytest.mark.parametrize(
    ("which", "source", "message"),
    [
        ("lengths", "tiny_a-M4-random", r"nvfp4\.gemm: which is 'lengths'; allowed: 'x', 'alpha'\."),
        ("x", "tiny_a-M5-random", r"source is \(5, 512\); allowed: the call's \(M, K\), \(4, 512\)\."),
    ],
)
def test_senseless_changes_are_refused(which: str, source: str, message: str) -> None:
    """An unknown change, and a source whose activations do not fit."""
    with pytest.raises(ParameterError, match=message):
        cases.changed(one("tiny_a-M4-random"), which, 1, one(source))


@pytest.mark.parametrize("label", ["tiny_a-M4-random", "tiny_e-M1-fp32", "tiny_d-M1-exact"])
def test_shuffled_contents_keep_geometry_and_alpha(label: str) -> None:
    """Timing copies of a recorded call: another answer, the same shapes, strides and distribution, a seed each."""
    call = one(label)
    first, second = (cases.shuffled(call, seed) for seed in (1, 2))
    assert "alpha" not in first
    for name, tensor in first.items():
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (
            call.inputs[name].shape,
            call.inputs[name].stride(),
            call.inputs[name].dtype,
        )
    assert rel_l2(result(call, **first), result(call)) > 0.3
    assert rel_l2(result(call, **first), result(call, **second)) > 0.3


def test_scales_may_be_typed_as_e4m3() -> None:
    """A call whose scales are float8 keeps that dtype through guards, changes and shuffles."""
    call = one("tiny_e-M3-random")
    typed = call.with_inputs(**{n: call.inputs[n].view(torch.float8_e4m3fn) for n in ("x_sf", "weight_sf")})
    guarded = cases.with_guard_rows(typed)
    new = {**cases.changed(guarded, "x", 1, guarded), **cases.shuffled(guarded, 1)}
    for name in ("x_sf", "weight_sf"):
        assert guarded.inputs[name].dtype == new[name].dtype == torch.float8_e4m3fn
    assert torch.equal(result(guarded), result(call))


@pytest.mark.parametrize("name", ["alpha_zero", "zero_activations"])
def test_edges_without_signal_are_zero(name: str) -> None:
    """alpha 0 and activations 0 give exactly 0."""
    assert not result(cases.edge_calls(2)[name]).any()


def test_edge_calls_hold_what_their_names_say() -> None:
    """alphas, scale bytes and codes of -0 are there."""
    edges = cases.edge_calls(2)
    assert {n: edges[n].inputs["alpha"].item() for n in ("alpha_tiny", "alpha_one", "alpha_large")} == {
        "alpha_tiny": pytest.approx(1e-8),
        "alpha_one": 1.0,
        "alpha_large": 1e4,
    }
    assert edges["alpha_negative"].inputs["alpha"].item() < 0
    assert (layouts.unswizzle_128x4(edges["top_scales"].inputs["x_sf"], 4, 8) == 0x7E).all()
    assert (layouts.unswizzle_128x4(edges["zero_scales"].inputs["weight_sf"].T, 48, 8).flatten()[::3] == 0).all()
    assert ((edges["minus_zero"].inputs["x_fp4"] & 15) == 8).float().mean() >= 0.5
    assert ((edges["minus_zero"].inputs["weight"] >> 4) == 8).float().mean() >= 0.5


def test_golden_blocks_are_the_edges_of_the_quantiser() -> None:
    """The first token holds, in order: -8 to 7, zeros, 2688, a clipped 5000, a vanishing block, the least scale."""
    call = cases.edge_calls(2)["golden_blocks"]
    assert bytes(call.inputs["x_fp4"][0, :8].tolist()).hex() == "ffeecd9b10436576"
    scales = layouts.unswizzle_128x4(call.inputs["x_sf"], 4, 8)[0, :6].tolist()
    assert scales == [0x3B, 0x00, 0x7E, 0x7E, 0x00, 0x01]


@pytest.mark.gpu
def test_input_sets_of_a_large_layer_are_made_on_the_device() -> None:
    """Two sets of the largest layer lie on the device, aligned to 256 bytes, and fit each other."""
    sets = cases.make_sets(cases.rows(["27b_gate_up"], [9], ["random"])[0], 2, 0, "cuda")
    for call in sets:
        assert all(t.data_ptr() % 256 == 0 and t.is_cuda for t in (call.inputs | call.outputs).values())
