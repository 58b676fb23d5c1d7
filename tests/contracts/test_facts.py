"""Facts of a call: read from host-side properties only, with alignment and contiguity as torch has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kda_lab import runtime
from kda_lab.contracts.facts import TensorFacts, alignment_of, call_facts, tensor_facts
from kda_lab.ops.protocol import OpSpec

SPEC = OpSpec("toy.scale", ("x", "w"), ("factor",), ("out",))


def test_tensor_facts_are_those_of_torch() -> None:
    """Dtype, shape, strides and device are taken over as plain values."""
    view = torch.zeros(6, 4, dtype=torch.bfloat16)[::2].t()
    facts = tensor_facts(view)
    assert (facts.dtype, facts.shape, facts.strides, facts.device) == ("bfloat16", (4, 3), (1, 8), "cpu")
    assert not facts.contiguous


def test_a_meta_tensor_has_facts() -> None:
    """A tensor without memory can be judged too, so no fact needs memory."""
    facts = tensor_facts(torch.zeros(4, 24, 256, dtype=torch.bfloat16, device="meta"))
    assert (facts.shape, facts.device_type, facts.alignment) == ((4, 24, 256), "meta", 256)


@pytest.mark.parametrize(
    ("address", "alignment"), [(0, 256), (256, 256), (4096, 256), (16, 16), (48, 16), (2, 2), (7, 1)]
)
def test_alignment_is_the_largest_power_of_two_up_to_256(address: int, alignment: int) -> None:
    """An address is described by the largest power of two that divides it, at most 256."""
    assert alignment_of(address) == alignment


def test_alignment_follows_a_slice() -> None:
    """A slice that starts at the third BF16 element is four bytes aligned."""
    base = torch.zeros(256, dtype=torch.bfloat16)
    offset = (-base.data_ptr() % 256) // 2
    assert tensor_facts(base[offset + 2 :]).alignment == 4


@given(
    shape=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    order=st.permutations(range(4)),
    step=st.integers(1, 2),
)
def test_contiguous_agrees_with_torch(shape: list[int], order: list[int], step: int) -> None:
    """For permuted and strided views the answer is that of `Tensor.is_contiguous`."""
    view = torch.zeros(shape).permute([i for i in order if i < len(shape)])[::step]
    assert tensor_facts(view).contiguous == view.is_contiguous()


@given(
    shape=st.lists(st.integers(0, 4), min_size=2, max_size=4), order=st.permutations(range(4)), step=st.integers(1, 2)
)
def test_transposed_agrees_with_torch(shape: list[int], order: list[int], step: int) -> None:
    """A tensor is transposed exactly when its last two dimensions swapped are contiguous."""
    view = torch.zeros([2 * e for e in shape])[tuple(slice(0, step * e, step) for e in shape)]
    view = view.permute([o for o in order if o < len(shape)])
    assert tensor_facts(view).transposed == view.transpose(-1, -2).is_contiguous()


@pytest.mark.parametrize(
    ("view", "free", "right"),
    [
        (torch.zeros(4, 8)[:, :5], 1, True),
        (torch.zeros(4, 8)[:, :5], 0, False),
        (torch.zeros(4, 8)[:, ::2], 1, False),
        (torch.zeros(3, 4, 2, 2)[:, ::3], 2, True),
        (torch.zeros(3, 4, 2, 2)[:, ::3], 1, False),
        (torch.zeros(4, 0), 1, True),
    ],
    ids=["row-slice", "not-free", "column-step", "slots-of-layers", "one-free", "empty"],
)
def test_leading_strides_may_be_left_out(view: torch.Tensor, free: int, right: bool) -> None:
    """Rows of a wider tensor and slots of a pool are contiguous behind their leading dimensions."""
    assert tensor_facts(view).contiguous_behind(free) is right


@pytest.mark.parametrize(
    ("shape", "strides"), [((), ()), ((4,), (1,)), ((2, 2), (1,))], ids=["scalar", "vector", "broken"]
)
def test_nothing_below_two_dimensions_is_transposed(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Where there are no two dimensions to swap, or strides that do not fit, the answer is no."""
    assert not TensorFacts("uint8", shape, strides, "cuda", 0).transposed


def test_strides_that_do_not_fit_the_shape_are_not_contiguous() -> None:
    """Facts made by hand with a stride missing are refused, not guessed."""
    assert not TensorFacts("float32", (2, 2), (1,), "cuda", 0).contiguous


def test_call_facts_name_every_argument() -> None:
    """Inputs and given outputs are facts, None is absent, anything else is foreign by its type."""
    sparse = torch.zeros(2, 2).to_sparse()
    facts = call_facts(SPEC, {"x": torch.zeros(2), "w": [1.0]}, {"factor": 2}, {"out": None, "extra": sparse})
    assert list(facts.tensors) == ["x"]
    assert dict(facts.foreign) == {"w": "a list", "extra": "a tensor of layout torch.sparse_coo"}
    assert dict(facts.scalars) == {"factor": 2}
    assert facts.capability is None


class _CudaLike(torch.Tensor):
    """A tensor that says it is on a GPU and forbids every read of its contents."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 3)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} would have touched the device")


def test_capability_is_that_of_the_first_cuda_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capability asked for is that of the op's first input on a GPU, and no operator runs on any tensor."""
    asked = []
    monkeypatch.setattr(runtime, "capability", lambda device: asked.append(device) or (12, 1))
    silent = torch.Tensor._make_subclass(_CudaLike, torch.zeros(4))
    facts = call_facts(SPEC, {"x": torch.zeros(2), "w": silent}, {})
    assert facts.capability == (12, 1)
    assert asked == [torch.device("cuda", 3)]
    assert facts.tensors["w"].device == "cuda:3"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_foreign(layout: torch.layout) -> None:
    """It has no one shape, whatever layout it claims, and asking for it must not raise."""
    nested = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)], layout=layout)
    facts = call_facts(SPEC, {"x": nested, "w": torch.zeros(3)}, {"factor": 2})
    assert (facts.foreign, list(facts.tensors)) == ({"x": "a nested tensor"}, ["w"])


def test_tensors_that_begin_at_one_address_are_known() -> None:
    """By the first of them, inputs before outputs; views behind the start, and tensors without elements, are not."""
    base = torch.zeros(8)
    outputs = {"out": base.view(2, 4)}
    assert call_facts(SPEC, {"x": base, "w": base[:4]}, {}, outputs).same_start == {"w": "x", "out": "x"}
    assert call_facts(SPEC, {"x": base, "w": base[1:]}, {}).same_start == {}
    assert call_facts(SPEC, {"x": base[:0], "w": base[:0]}, {}, {"out": None}).same_start == {}
