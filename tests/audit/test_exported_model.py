"""The parts of an audit of our exports: places, files of a kernel, statuses, and a verdict that counts what was not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kda_lab.audit.exported_model import CHECKS, ExportedAudit, Outcome, Places, finding_of
from kda_lab.audit.finding import RULES


def test_the_package_knows_where_its_kernels_are() -> None:
    """The installed package and its checkout are what is audited when nothing is named."""
    places = Places.of_package()
    assert (places.kernels / "__init__.py").is_file()
    assert places.doors == places.kernels.parent


def test_every_check_applies_a_known_rule() -> None:
    """No check invents a rule, and those that only run code can answer are among them."""
    assert set(CHECKS.values()) <= set(RULES)
    assert {"AUD-9", "AUD-10", "AUD-13"} <= set(CHECKS.values())


def test_host_and_compiled_files_follow_the_contract(toy: Any) -> None:
    """Triton compiles the host file; CUDA C++ compiles its `.cu`; `kernel.py` holds the entry among several."""
    assert toy.kernel.host == toy.kernel.compiled == toy.source
    licence = {"license": "Apache-2.0", "sha256": "0" * 64}
    more = [{"path": "a.py", "language": "python"}, {"path": "kernel.cu", "language": "cuda"}]
    toy.edit_contract(lambda c: c["sources"].__iadd__([{**licence, **m} for m in more]))
    toy.edit_contract(lambda c: c.update(language="cuda"))
    assert toy.kernel.host.name == "kernel.py"
    assert toy.kernel.compiled.name == "kernel.cu"
    toy.edit_contract(lambda c: c["sources"].pop(0))
    assert toy.kernel.host.name == "a.py"


def test_a_verdict_counts_what_was_not_run_apart() -> None:
    """An audit in which nothing ran is not called passed checks."""
    outcome = Outcome(kernel="k", check="replay", status="not run", words="no GPU")
    audit = ExportedAudit(kernels=("k",), scope="", compilers={}, outcomes=(outcome,))
    assert audit.sentence == "clean: 1 exported kernels, 0 checks passed, 0 noted, 1 not run"
    assert audit.findings == ()


def test_a_status_that_is_none_is_refused() -> None:
    """Outcomes have one of four statuses."""
    with pytest.raises(ValidationError, match="status"):
        Outcome(kernel="k", check="replay", status="fine", words="")  # type: ignore[arg-type]


def test_a_finding_names_the_file_in_its_kernel() -> None:
    """File and evidence lead to the folder of the kernel."""
    found = finding_of("k", "licence", "cosmetic", "gone", "look", "LICENSE.txt")
    assert found.file == Path("k/LICENSE.txt").as_posix()
    assert str(found.evidence[0]) == "package k/LICENSE.txt"
