"""Targets are found by dotted name, and arguments get the names of the signature."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from kda_lab.captures.binding import bind, named_results, of_op, resolve, split
from kda_lab.errors import ParameterError
from kda_lab.ops.protocol import OpSpec


class Parent:
    """Methods of each kind."""

    def method(self, x: Any) -> Any:
        return x

    @staticmethod
    def static(x: Any) -> Any:
        return x

    @classmethod
    def made(cls, x: Any) -> Any:
        return x


class Child(Parent):
    """Inherits all of them."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An importable module `tapped_example` that holds the classes."""
    made = ModuleType("tapped_example")
    made.Parent, made.Child, made.number, made.function = Parent, Child, 3, (lambda x: x)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tapped_example", made)
    return made


@pytest.mark.parametrize(
    ("dotted", "owner", "own", "bound_first"),
    [
        ("tapped_example.function", "module", True, False),
        ("tapped_example.Parent.method", Parent, True, True),
        ("tapped_example.Parent.static", Parent, True, False),
        ("tapped_example.Parent.made", Parent, True, True),
        ("tapped_example.Child.method", Child, False, True),
        ("tapped_example.Child.static", Child, False, False),
    ],
)
def test_a_target_knows_its_owner_and_kind(
    module: ModuleType, dotted: str, owner: Any, own: bool, bound_first: bool
) -> None:
    """Functions, methods, static and class methods, own and inherited."""
    found = resolve(dotted)
    assert found.owner is (module if owner == "module" else owner)
    assert (found.own, found.bound_first) == (own, bound_first)
    assert found.function(None, 5) == 5 if bound_first else found.function(5) == 5


@pytest.mark.parametrize(
    ("dotted", "words"),
    [
        ("no_such_package_anywhere.function", "allowed: package.module.function, importable here"),
        ("nodots", "allowed: package.module.function, importable here"),
        ("tapped_example.absent", "allowed: an attribute that exists"),
        ("tapped_example.Parent.absent", "allowed: an attribute that exists"),
        ("tapped_example.number", "tapped_example.number, a int; allowed: a function or method"),
        ("tapped_example.Parent", "tapped_example.Parent, a type; allowed: a function or method"),
    ],
)
def test_a_target_that_cannot_be_tapped_is_refused(module: ModuleType, dotted: str, words: str) -> None:
    """The refusal says what is wrong with the name."""
    with pytest.raises(ParameterError, match=f"target is .*{words}"):
        resolve(dotted)


def test_a_module_whose_own_import_is_missing_shows_that_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken module is not reported as an absent one."""
    (tmp_path / "broken_example.py").write_text("import absent_dependency_of_example\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="absent_dependency_of_example"):
        resolve("broken_example.function")


@pytest.mark.parametrize("name", ["method", "static", "made"])
def test_a_method_of_an_object_is_the_bound_one(module: ModuleType, name: str) -> None:
    """It is called as the host calls it, without `self`; the object itself does not hold it."""
    module.item = Child()  # type: ignore[attr-defined]
    found = resolve(f"tapped_example.item.{name}")
    assert (found.owner, found.own, found.bound_first) == (module.item, False, False)
    assert found.function(5) == 5 and found.wrapping(found.function) is found.function


def test_arguments_get_their_names_and_defaults() -> None:
    """Positional, keyword, default, rest and extra arguments are all named."""

    def function(x: Any, y: Any = 2, *rest: Any, flag: bool = True, **extra: Any) -> None:
        pass

    found = bind(function, (torch.zeros(1), 5, "a", torch.ones(2)), {"scale": 0.5}, skip_first=False)
    assert sorted(found.tensors) == ["rest_1", "x"]
    assert found.scalars == {"y": 5, "rest_0": "a", "flag": True, "scale": 0.5}
    assert bind(function, (torch.zeros(1),), {}, skip_first=False).scalars == {"y": 2, "flag": True}


def test_the_object_of_a_method_is_left_out() -> None:
    """`self` is neither recorded nor refused."""
    found = bind(Parent.method, (Parent(), 3), {}, skip_first=True)
    assert (found.scalars, found.refused) == ({"x": 3}, {})


def test_a_builtin_without_signature_gets_numbered_names() -> None:
    """torch's builtins can be tapped too."""
    found = bind(torch.add, (torch.zeros(1), 2), {"alpha": 3}, skip_first=False)
    assert list(found.tensors) == ["arg0"]
    assert found.scalars == {"arg1": 2, "alpha": 3}


def test_what_is_neither_tensor_nor_scalar_is_refused_with_its_type() -> None:
    """Nothing is dropped silently."""
    pairs = [
        ("c", object()),
        ("l", [1]),
        ("i", float("inf")),
        ("s", torch.eye(2).to_sparse()),
        ("d", torch.device("cpu")),
    ]
    found = split(pairs)
    assert (found.tensors, found.scalars) == ({}, {})
    assert found.refused["c"] == "object is neither a tensor nor a plain scalar"
    assert found.refused["i"] == "inf is no JSON number"
    assert "dense" in found.refused["s"]
    assert set(found.refused) == {"c", "l", "i", "s", "d"}


@pytest.mark.parametrize(
    ("result", "names", "found"),
    [
        (torch.zeros(1), ("out",), ["out"]),
        (torch.zeros(1), (), []),
        ((torch.zeros(1), 3, torch.zeros(2)), ("a", "b", "c"), ["a", "c"]),
        ({"lse": torch.zeros(1), "x": torch.zeros(1)}, ("out", "lse"), ["lse"]),
        (None, ("out",), []),
    ],
    ids=["tensor", "unnamed", "tuple", "dict", "none"],
)
def test_results_are_named_in_order_or_by_key(result: Any, names: tuple[str, ...], found: list[str]) -> None:
    """What is no tensor has no name."""
    assert list(named_results(result, names)) == found


def test_a_dtype_is_kept_by_its_name() -> None:
    """JSON has no dtypes; a replay turns the name back."""
    found = split([("out_dtype", torch.bfloat16), ("other", torch.float8_e4m3fn)])
    assert (found.scalars, found.refused) == ({"out_dtype": "bfloat16", "other": "float8_e4m3fn"}, {})


def test_arguments_that_are_no_ones_of_the_op_are_left_out_and_named() -> None:
    """A door's `kernel` would be refused by every other arm; the output's None stays for the tap to sort out."""
    spec = OpSpec("test.op", ("x",), ("scale",), ("out",))
    found = of_op(split([("x", torch.zeros(1)), ("scale", 2.0), ("kernel", None), ("out", None)]), spec)
    assert found.scalars == {"scale": 2.0, "out": None}
    assert found.refused == {"kernel": "None is no argument of test.op"}


def test_a_function_with_another_signature_keeps_all_its_arguments() -> None:
    """Nothing is known of what its arguments mean."""
    spec = OpSpec("test.op", ("x",), ("scale",), ("out",))
    foreign = split([("x", torch.zeros(1)), ("sm_scale", 2.0)])
    assert of_op(foreign, spec) is foreign
