"""Cold compile in the audit: what is planned, what counts as new, and which numbers are judged under which compiler."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kda_lab import runtime
from kda_lab.audit import exported_compile
from kda_lab.audit.exported_compile import architectures_in, build, check_compile, planned
from kda_lab.contracts.model import Resources
from kda_lab.errors import ExportError
from kda_lab.export import compile_gate


def other_version(evidence: dict[str, Any]) -> None:
    """As if the evidence had been made with another compiler."""
    evidence["provenance"]["versions"]["triton"] = "0.1"


def outcomes(toy: Any, full: bool = False) -> dict[str, Any]:
    """Check to outcome."""
    return {o.check: o for o in check_compile(toy.kernel, full)}


def test_a_real_compile_gives_one_new_cubin_for_its_architecture(toy_built: Any) -> None:
    """The toy compiles without a GPU; its artifact names SM90 and nothing stands against it."""
    cubin, built = toy_built
    assert built.fault == ""
    assert built.targets in (("sm_90",), ("sm_90a",))
    assert built.used.registers > 0
    assert architectures_in([cubin]) == built.targets


def test_no_artifact_names_no_architecture(tmp_path: Path) -> None:
    """A file that is no cubin is never taken for one."""
    (tmp_path / "no.cubin").write_text("nothing")
    assert architectures_in([tmp_path / "no.cubin"]) == ()


def test_a_tool_that_hangs_or_is_broken_tells_nothing(monkeypatch: pytest.MonkeyPatch, toy_built: Any) -> None:
    """The architectures are then unknown, which is never a pass."""
    for error in (subprocess.TimeoutExpired("cuobjdump", 60), PermissionError("cuobjdump")):

        def fail(*_arguments: Any, error: Exception = error, **_options: Any) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(exported_compile.subprocess, "run", fail)
            assert architectures_in([toy_built[0]]) is None


@pytest.fixture
def two_units(toy: Any) -> Any:
    """The toy with a second unit of the same function."""

    def change(contract: dict[str, Any]) -> None:
        (unit,), (used,) = contract["compile_units"], contract["architectures"][0]["resources"]
        constants = {**unit["constants"], "BLOCK": 64}
        contract["compile_units"].append({**unit, "constants": constants})
        contract["architectures"][0]["resources"].append({**used, "constants": constants})

    toy.edit_contract(change)
    return toy


@pytest.mark.usefixtures("compiled_before")
def test_the_first_unit_of_each_function_is_compiled_unless_all_are_asked_for(two_units: Any) -> None:
    """The words say how many of how many, and which architectures are refused."""
    tail = "units compiled cold, one new cubin each in a cache that was empty; refused and not compiled: sm120"
    assert outcomes(two_units)["compile"].words == f"1 of 2 {tail}"
    assert outcomes(two_units, full=True)["compile"].words == f"2 of 2 {tail}"
    assert [unit.constants["BLOCK"] for _, unit, _ in planned(two_units.kernel, full=False)[0]] == [32]


def test_units_and_stated_resources_must_fit(two_units: Any) -> None:
    """Resources of other constants than the units' are a finding, and are compared with nothing."""
    two_units.edit_contract(lambda c: c["architectures"][0]["resources"].reverse())
    plan, gaps = planned(two_units.kernel, full=True)
    assert [stated for _, _, stated in plan] == [None, None]
    assert [gap.lost for gap in gaps] == ["sm90 has 2 compile units and resources of 2, or of others"]


@pytest.mark.usefixtures("compiled_before")
def test_an_architecture_without_units_is_found(toy: Any) -> None:
    """A served architecture that nothing is compiled for cannot be launched on."""

    def change(contract: dict[str, Any]) -> None:
        contract["compile_units"][0]["capabilities"] = [[12, 0]]
        contract["architectures"][0]["resources"] = []

    toy.edit_contract(change)
    found = outcomes(toy)
    assert found["compile"].words == "sm90 has 0 compile units and resources of 0, or of others"
    assert {found[check].status for check in ("resources", "cubins", "architectures")} == {"not run"}


def test_a_compile_that_fails_is_a_finding(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's words are the finding's; nothing else of the unit is judged."""

    def refuse(*_arguments: Any) -> Resources:
        raise ExportError("export.compile", "the compiler said no")

    monkeypatch.setattr(compile_gate, "compile_unit", refuse)
    found = outcomes(toy)
    assert found["compile"].words == "export.compile: the compiler said no"
    assert {found[check].status for check in ("resources", "cubins", "architectures")} == {"not run"}


@pytest.mark.parametrize("age", ["old", "absent"])
def test_an_artifact_that_is_not_new_is_a_finding(
    toy: Any, toy_built: Any, monkeypatch: pytest.MonkeyPatch, age: str
) -> None:
    """A cubin from before the compile, or none at all, proves nothing of this source."""

    def stale(_source: Path, _unit: Any, _capability: Any, cache_dir: Path) -> Resources:
        cache_dir.mkdir(parents=True)
        if age == "old":
            (cache_dir / "a.cubin").write_bytes(toy_built[0].read_bytes())
            os.utime(cache_dir / "a.cubin", (1, 1))
        used: Resources = toy_built[1].used
        return used

    monkeypatch.setattr(compile_gate, "compile_unit", stale)
    assert "nothing proves it new" in outcomes(toy)["compile"].words


@pytest.mark.usefixtures("compiled_before")
@pytest.mark.parametrize("field", ["registers", "spill_bytes", "shared_bytes"])
def test_numbers_are_judged_under_the_recorded_compiler_only(toy: Any, field: str) -> None:
    """An edited number is a finding where the compiler is the recorded one, and noted under any other."""
    toy.edit_contract(lambda c: c["architectures"][0]["resources"][0].update({field: 7777}))
    judged = outcomes(toy)["resources"]
    assert judged.status == "failed"
    assert f"{field} is " in judged.words and "the contract says 7777" in judged.words
    toy.edit_evidence(other_version)
    noted = outcomes(toy)["resources"]
    assert noted.status == "noted"
    here = runtime.versions()["triton"]
    assert (
        f"1 of 1 units differ under another compiler, not judged: triton {here} here, 0.1 in the evidence"
        in noted.words
    )


@pytest.mark.usefixtures("compiled_before")
def test_a_number_that_nobody_recorded_is_not_compared(toy: Any) -> None:
    """A contract made without cuobjdump has no registers; that is no difference."""
    toy.edit_contract(lambda c: c["architectures"][0]["resources"][0].update(registers=None))
    assert outcomes(toy)["resources"].status == "passed"


@pytest.mark.usefixtures("compiled_before")
def test_machine_code_is_compared_where_equal_inputs_give_equal_bytes(toy: Any) -> None:
    """Equal hashes pass; others are judged for CUDA C++ under the recorded compiler, and never for Triton."""
    assert outcomes(toy)["cubins"].status == "passed"
    toy.edit_contract(lambda c: c["architectures"][0]["resources"][0].update(cubin_sha256="0" * 64))
    triton = outcomes(toy)["cubins"]
    assert triton.status == "not run"
    assert "Triton writes the path of the source into its line table" in triton.words
    toy.edit_evidence(other_version)
    assert "0.1 in the evidence" in outcomes(toy)["cubins"].words


@pytest.mark.usefixtures("compiled_before")
def test_other_machine_code_of_cuda_is_a_finding(toy: Any) -> None:
    """NVRTC is given a fixed file name, so equal source, options and version must give the contract's bytes."""

    def change(contract: dict[str, Any]) -> None:
        contract["language"] = "cuda"
        contract["architectures"][0]["resources"][0]["cubin_sha256"] = "0" * 64

    toy.edit_contract(change)
    found = outcomes(toy)["cubins"]
    assert found.status == "failed"
    assert found.words.endswith("has another machine code")


@pytest.mark.usefixtures("compiled_before")
def test_a_contract_without_hashes_has_no_cubins_to_compare(toy: Any) -> None:
    """What the contract does not state is not called equal."""
    toy.edit_contract(lambda c: c["architectures"][0]["resources"][0].update(cubin_sha256=None))
    assert outcomes(toy)["cubins"].status == "not run"


@pytest.mark.usefixtures("compiled_before")
def test_without_a_tool_no_architecture_is_read(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cuobjdump, no judgement: never a pass."""
    absent = runtime.OptionalModule("triton", None, "unavailable, because this test says so")
    monkeypatch.setattr(exported_compile.runtime, "import_optional", lambda _name: absent)
    assert outcomes(toy)["architectures"].status == "not run"


@pytest.mark.usefixtures("compiled_before")
def test_a_build_names_its_unit_and_architecture(toy: Any, tmp_path: Path) -> None:
    """A finding's words lead to the unit."""
    (unit,) = toy.kernel.contract.compile_units
    made = build(toy.kernel, (9, 0), unit, None, tmp_path / "cache")
    assert made.label == "_toy_kernel for sm90 (GROUP=12, HQ=12, D=256, BLOCK=32)"
