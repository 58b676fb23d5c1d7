"""What the child process of the compile gate hands to Triton's compiler."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kda_lab.export import compile_worker

UNIT = {"function": "f", "signature": {"n": "i32", "x": "*bf16"}, "constants": {"BLOCK": 8}, "divisible_by_16": ["x"]}


class Source(SimpleNamespace):
    """Keeps the arguments that the compiler's source object would get."""


@pytest.fixture(autouse=True)
def keep_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_worker, "ASTSource", Source)


def test_arguments_follow_the_function_order() -> None:
    """Types are put in the function's order, constants become constexpr, divisibility becomes an attribute by index."""
    made = compile_worker.ast_source(SimpleNamespace(arg_names=["x", "n", "BLOCK"]), UNIT)
    assert list(made.signature.items()) == [("x", "*bf16"), ("n", "i32"), ("BLOCK", "constexpr")]
    assert made.constexprs == {(2,): 8}
    assert made.attrs == {(0,): [["tt.divisibility", 16]]}


def test_argument_that_the_unit_leaves_out() -> None:
    """A function with an argument more than the unit has is refused with both lists."""
    with pytest.raises(ValueError, match=r"missing in the unit: \['extra'\]; unknown: \[\]"):
        compile_worker.ast_source(SimpleNamespace(arg_names=["x", "n", "BLOCK", "extra"]), UNIT)


@pytest.mark.parametrize(("maxnreg", "said"), [(None, {}), (64, {"maxnreg": 64})])
def test_a_limit_of_registers_is_said_where_there_is_one(maxnreg: int | None, said: dict[str, int]) -> None:
    """Warps and stages always; registers only where the unit limits them."""
    options = compile_worker.launch_options({"num_warps": 8, "num_stages": 3, "maxnreg": maxnreg})
    assert options == {"num_warps": 8, "num_stages": 3, **said}
