"""The op registry: folders are found, unknown names are refused, Triton stays out until it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kda_lab.errors import ParameterError
from kda_lab.ops import registry


def test_every_folder_with_a_spec_is_an_op() -> None:
    """The names are those of the SPEC of each folder that holds a spec.py, sorted."""
    folders = Path(registry.__file__).parent.glob("*/spec.py")
    names = registry.op_names()
    assert "qsa.packed_decode" in names
    assert list(names) == sorted(names)
    assert len(names) == len(list(folders))


@pytest.mark.parametrize("name", registry.op_names())
def test_op_has_all_its_parts(name: str) -> None:
    """A loaded op offers the functions and tables that an op folder promises."""
    op = registry.load_op(name)
    assert op.name == op.spec.name == name
    for part, members in {
        "oracle": ("oracle_fp32", "oracle_fp64", "emulate"),
        "cases": ("rows", "synthesise", "with_guard_rows", "changed", "make_sets"),
        "work": ("work",),
        "mutants": ("MUTANTS",),
        "gates": ("TOLERANCES", "limits"),
    }.items():
        assert all(hasattr(getattr(op, part), member) for member in members), part


def test_unknown_op_is_refused_with_the_known_names() -> None:
    """A name that no folder has is refused, and the refusal lists the names there are."""
    with pytest.raises(ParameterError, match=r"ops: op is 'no\.such'; allowed: .*'qsa\.packed_decode'.* Name one of"):
        registry.load_op("no.such")


def test_op_with_a_missing_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that lacks one of its files is refused with the name of the file."""
    monkeypatch.setattr(registry, "PARTS", (*registry.PARTS, "poem"))
    registry.load_op.cache_clear()
    with pytest.raises(
        ParameterError, match=r"files of qsa\.packed_decode is without poem\.py; allowed: all of an op's"
    ):
        registry.load_op("qsa.packed_decode")


def test_two_folders_of_one_name_are_refused() -> None:
    """Two folders whose specs have one name are an error that names both."""
    with pytest.raises(
        ParameterError, match=r"one folder a name.*Both are .*qsa_packed_decode and .*qsa_packed_decode"
    ):
        registry._read(("qsa_packed_decode", "qsa_packed_decode"))


def test_loading_an_op_does_not_import_triton() -> None:
    """Only the baselines bring Triton; loading an op for its oracle or cases does not."""
    code = (
        "import sys; from kda_lab.ops.registry import load_op; op = load_op('qsa.packed_decode'); "
        "loaded = [n for n in ('triton', 'flashinfer', 'scipy', 'pandas') if n in sys.modules]; print(loaded)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_baselines_are_imported_on_demand() -> None:
    """The property gives the module with the op's arms, the speed baseline first."""
    arms = registry.load_op("qsa.packed_decode").baselines.ARMS
    assert len({arm.name for arm in arms}) == len(arms) > 0
