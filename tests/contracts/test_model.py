"""The contract model: what it refuses, that it round-trips, and that its published schema is in step."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from kda_lab.contracts import model
from kda_lab.contracts.model import Contract, Declaration

SCHEMA_FILE = Path(model.__file__).with_name("contract.schema.json")


def put(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A deep copy with one field replaced: `put(values, "tensors.q.dtypes", [])`."""
    copied = copy.deepcopy(values)
    *folders, last = path.split(".")
    place: Any = copied
    for part in folders:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[int(last) if isinstance(place, list) else last] = value
    return copied


REFUSED: dict[str, tuple[str, Any, str]] = {
    "unknown-field": ("extra", 1, "Extra inputs are not permitted"),
    "version-0": ("version", 0, "greater than or equal to 1"),
    "contract-version-2": ("contract_version", 2, "Input should be 1"),
    "no-dtype": ("tensors.q.dtypes", [], "at least 1 item"),
    "bad-dimension": ("tensors.q.shape.0", "B*2", r"a dimension is 'B\*2'; allowed: a number, or an axis name like B"),
    "negative-extent": ("tensors.q.shape.0", -1, "an extent is -1; allowed: 0 or more"),
    "odd-alignment": ("tensors.q.alignment_bytes", 24, "alignment_bytes is 24; allowed: a power of two from 1 to 256"),
    "cpu-gate": ("tensors.q.device", "cpu", "Input should be 'cuda'"),
    "scalar-bounds": ("scalars.max_seqlen_k.minimum", 9999, "minimum 9999 is above maximum 2055"),
    "axis-range": ("callable.0.axes.B", {"minimum": 9, "maximum": 1}, "minimum 9 is above maximum 1"),
    "callable-axis-unknown": (
        "callable.0.axes.X",
        1,
        r"callable names the axes \['X'\]; allowed: \['B', 'HKV', 'HQ', 'N'\]",
    ),
    "dispatched-axis-unknown": ("dispatched.0.axes.X", 1, r"dispatched names the axes \['X'\]"),
    "raise-with-chain": ("fallback", {"kind": "raise", "chain": ["a"]}, "a chain has names, a raise none"),
    "chain-without-names": ("fallback", {"kind": "chain"}, "a chain has names, a raise none"),
    "chain-with-a-name-twice": (
        "fallback",
        {"kind": "chain", "chain": ["a", "b", "a"]},
        "a fallback chain names 'a' twice; allowed: once",
    ),
    "no-callable-rule": ("callable", [], "at least 1 item"),
    "no-kernel-per-call": ("kernels_per_call", 0, "greater than or equal to 1"),
    "unknown-dtype": ("tensors.q.dtypes", ["bfloat17"], "a dtype is 'bfloat17'; allowed: torch's own name of one"),
    "qualified-without-evidence": ("architectures.0.evidence", None, "12.1 is qualified without evidence"),
    "evidence-of-another-architecture": (
        "architectures.0.evidence.path",
        "reports/evidence/grouped/v3/sm120.json",
        "'reports/evidence/grouped/v3/sm120.json'; allowed: a file called sm121.json",
    ),
    "dispatched-wider-range": (
        "dispatched.0.axes.B.maximum",
        129,
        "a dispatched rule is {.*'maximum': 129}}; allowed: one that lies within one callable rule",
    ),
    "dispatched-between-two-rules": ("dispatched.0.axes.HKV", 1, "allowed: one that lies within one callable rule"),
    "dispatched-free-axis": ("dispatched.0.axes", {"HQ": 24, "HKV": 2}, "one that lies within one callable rule"),
    "refused-without-note": ("architectures.2.note", "", "10.0 is refused without a note"),
    "architecture-twice": (
        "architectures.1.capability",
        [12, 1],
        r"architectures names \(12, 1\) twice; allowed: once",
    ),
    "no-source": ("sources", [], "at least 1 item"),
    "absolute-source": ("sources.0.path", "/etc/kernel.py", "a path is '/etc/kernel.py'; allowed: relative"),
    "escaping-source": (
        "sources.0.path",
        "../kernel.py",
        "a path is '../kernel.py'; allowed: relative, with /, without ..",
    ),
    "escaping-evidence": ("architectures.0.evidence.path", "a/../../b", "without .."),
    "short-hash": ("sources.0.sha256", "abc", "String should match pattern"),
    "bad-kernel-name": ("kernel", "Grouped-1", "String should match pattern"),
    "undotted-op": ("op", "packed", "String should match pattern"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inconsistent_contract_is_refused(case: str, contract_values: dict[str, Any]) -> None:
    """A contract with one wrong field does not validate, and the message says what is allowed."""
    path, value, words = REFUSED[case]
    Contract.model_validate(contract_values)
    with pytest.raises(ValidationError, match=words):
        Contract.model_validate(put(contract_values, path, value))


@pytest.mark.parametrize(
    ("language", "maxnreg", "words"),
    [
        ("triton", 8, "greater than or equal to 16"),
        ("triton", 256, "less than or equal to 255"),
        ("cuda", 64, r"maxnreg of f is 64 with language 'cuda'; allowed: None \(write __launch_bounds__"),
    ],
)
def test_a_limit_of_registers_is_one_that_the_compiler_knows(
    language: str, maxnreg: int, words: str, contract_values: dict[str, Any]
) -> None:
    """16 to 255, and for Triton only: device code of CUDA C++ says it itself."""
    unit = {"function": "f", "signature": {}, "constants": {}}
    free = {**contract_values, "language": language, "compile_units": [unit]}
    assert Contract.model_validate(free).compile_units[0].maxnreg is None
    with pytest.raises(ValidationError, match=words):
        Contract.model_validate({**free, "compile_units": [{**unit, "maxnreg": maxnreg}]})


def test_source_twice_is_refused(contract_values: dict[str, Any]) -> None:
    """One file cannot have two hashes."""
    source = contract_values["sources"][0]
    with pytest.raises(ValidationError, match=r"sources names 'kernel\.py' twice; allowed: once"):
        Contract.model_validate({**contract_values, "sources": [source, source]})


def test_contract_round_trips_through_json(contract: Contract) -> None:
    """Writing and reading a contract gives the same contract, tuples and kinds of numbers included."""
    text = contract.model_dump_json()
    assert Contract.model_validate(json.loads(text)) == contract
    assert Contract.model_validate_json(text) == contract


def test_contract_cannot_be_changed(contract: Contract) -> None:
    """A contract in use is frozen."""
    with pytest.raises(ValidationError, match="frozen"):
        contract.version = 2  # type: ignore[misc]


def test_published_schema_is_in_step_with_the_model() -> None:
    """The schema file is what the model generates; rewrite it with the command in docs/contract.md."""
    assert json.loads(SCHEMA_FILE.read_text()) == model.json_schema()


def test_published_schema_accepts_a_contract_and_refuses_a_broken_one(make_contract: Callable[..., Contract]) -> None:
    """A tool that only has the schema file accepts the real thing and refuses a missing field."""
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    values = json.loads(make_contract().model_dump_json())
    jsonschema.validate(values, schema)
    del values["sources"]
    with pytest.raises(jsonschema.ValidationError, match="'sources' is a required property"):
        jsonschema.validate(values, schema)


CITED = {"path": "reports/evidence/grouped/v3/sm121.json", "sha256": "0" * 64}


@pytest.mark.parametrize("changes", [{}, {"path": "reports/evidence/grouped/v3/sm120.json"}, {"sha256": "2" * 64}])
def test_two_architectures_citing_one_evidence_are_refused(
    make_contract: Callable[..., Contract], changes: dict[str, str]
) -> None:
    """Neither one file nor one content was recorded on two kinds of hardware."""
    both = [
        {"capability": [12, 1], "status": "qualified", "evidence": CITED},
        {"capability": [12, 0], "status": "compiled", "evidence": {**CITED, **changes}},
    ]
    with pytest.raises(ValidationError, match=r"architectures' evidence names '.*' twice; allowed: once"):
        make_contract(architectures=both)


GEMM_REFUSED: dict[str, tuple[str, Any, str]] = {
    "axis-only-rounded": (
        "tensors.x_sf.shape",
        ["ceil128(R)", "ceil4(K/16)"],
        r"a shape has 'ceil128\(R\)', but no required tensor shows R; allowed: a rounded dimension of an axis that",
    ),
    "axis-shown-by-an-output-only": (
        "tensors.x_fp4.shape",
        ["T", "K/2"],
        r"a shape has 'ceil128\(M\)', but no required tensor shows M",
    ),
    "step-too-small": (
        "callable.0.axes.K.multiple_of",
        8,
        r"a shape has 'ceil4\(K/16\)', but the callable rule {.*'multiple_of': 8.*} lets K be no multiple of 16",
    ),
    "odd-list": ("callable.0.axes.K", [64, 72], r"lets K be no multiple of 16; allowed: such multiples only"),
    "free-axis": ("callable", [{"axes": {"M": 1}}], "lets K be no multiple of 16"),
    "integer-for-a-dtype": ("scalars.out_dtype.allowed", [1], "allowed: names of dtypes"),
}


@pytest.mark.parametrize("case", GEMM_REFUSED)
def test_a_declaration_that_could_pass_a_wrong_container_is_refused(case: str, gemm_values: dict[str, Any]) -> None:
    """A rounded dimension must have an axis to check against, and rules that leave no rest of its division."""
    path, value, words = GEMM_REFUSED[case]
    Declaration.model_validate(gemm_values)
    with pytest.raises(ValidationError, match=words):
        Declaration.model_validate(put(gemm_values, path, value))


def test_a_divisor_that_another_tensor_shows_needs_no_rule(gemm_values: dict[str, Any]) -> None:
    """When a required tensor shows exact groups of 16, K is a multiple of 16 whatever the rules say."""
    groups = {"dtypes": ["uint8"], "shape": ["K/16"]}
    values = {**gemm_values, "tensors": {**gemm_values["tensors"], "groups": groups}, "callable": [{"axes": {"M": 1}}]}
    assert Declaration.model_validate(values).callable[0].axes == {"M": 1}


def test_a_compile_unit_of_cuda_says_how_it_is_built(gemm_values: dict[str, Any]) -> None:
    """Shared memory and compiler options are kept; a unit that was written before they exist has none."""
    unit = {"function": "f", "signature": {}, "constants": {}}
    asked = {**unit, "dynamic_shared_bytes": 65536, "options": ["-std=c++17"]}
    first, second = Declaration.model_validate({**gemm_values, "compile_units": [unit, asked]}).compile_units
    assert (first.dynamic_shared_bytes, first.options) == (0, ())
    assert (second.dynamic_shared_bytes, second.options) == (65536, ("-std=c++17",))
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Declaration.model_validate({**gemm_values, "compile_units": [{**unit, "dynamic_shared_bytes": -1}]})


RANGE = {"minimum": 2, "maximum": 4}


@pytest.mark.parametrize(
    ("narrow", "wide", "within"),
    [
        (3, RANGE, True),
        (5, RANGE, False),
        ([2, 4], RANGE, True),
        ([2, 5], RANGE, False),
        (RANGE, [1, 2, 3, 4], True),
        (RANGE, [2, 4], False),
        ({"minimum": 1, "maximum": 10**12}, [1, 2], False),
        ({"minimum": 24, "maximum": 24}, 24, True),
        ([24, 24], 24, True),
        ([24, 25], 24, False),
        (24, [12, 24], True),
        (48, {**RANGE, "maximum": 64, "multiple_of": 16}, True),
        (40, {**RANGE, "maximum": 64, "multiple_of": 16}, False),
    ],
)
def test_a_dispatched_value_lies_within_the_callable_one(
    make_contract: Callable[..., Contract], narrow: Any, wide: Any, within: bool
) -> None:
    """Numbers, lists and ranges are compared with each other as sets of extents."""
    rules = {"callable": [{"axes": {"B": wide}}], "dispatched": [{"axes": {"B": narrow, "HQ": 24}}]}
    if within:
        assert make_contract(**rules).dispatched[0].axes["HQ"] == 24
        return
    with pytest.raises(ValidationError, match="one that lies within one callable rule"):
        make_contract(**rules)
