"""Files of an exported kernel: links, candidates by bytes and by name, licence lines, and what evidence must say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kda_lab.audit.exported_files import (
    candidate_of,
    check_candidate,
    check_evidence,
    check_licence,
    check_sources,
    recorded_versions,
)


def test_a_source_that_is_a_link_out_of_the_folder_is_found(toy: Any, tmp_path: Path) -> None:
    """The same bytes behind a link are no part of the folder that would be copied."""
    elsewhere = tmp_path / "elsewhere.py"
    toy.source.rename(elsewhere)
    toy.source.symlink_to(elsewhere)
    assert "kernel.py is a link to" in check_sources(toy.kernel).words


def test_a_kernel_folder_that_is_a_link_out_of_the_package_is_found(toy: Any, tmp_path: Path) -> None:
    """A linked folder is not what a package ships."""
    elsewhere = toy.folder.rename(tmp_path / "elsewhere")
    toy.folder.symlink_to(elsewhere, target_is_directory=True)
    assert "outside the folder of exported kernels" in check_sources(toy.kernel).words


def test_every_source_fault_is_a_finding_of_its_own(toy: Any) -> None:
    """A missing source and an unlisted file are two findings; the words name the first and count the rest."""
    toy.source.unlink()
    (toy.folder / "extra.cu").write_text("")
    outcome = check_sources(toy.kernel)
    assert len(outcome.findings) == 2
    assert outcome.words == (
        f"kernel.py is missing; the contract gives it the hash {toy.kernel.contract.sources[0].sha256[:12]} (and 1 more)"
    )


def test_the_candidate_is_found_by_its_bytes_first(toy: Any) -> None:
    """A file of the same bytes is the candidate, even where an earlier one declares the same kernel."""
    (toy.candidate.parent / "a_changed.py").write_text(toy.candidate.read_text() + "\n")
    assert candidate_of(toy.kernel) == toy.candidate


def test_the_candidate_is_found_by_its_kernel_name_then(toy: Any) -> None:
    """A changed candidate is known by the kernel that it declares; one that is no Python is passed over."""
    (toy.candidate.parent / "a_broken.py").write_text("def (")
    toy.candidate.write_text(toy.candidate.read_text() + "\n")
    assert candidate_of(toy.kernel) == toy.candidate


def test_without_a_candidate_nothing_is_compared(toy: Any) -> None:
    """A candidate that is gone, or is another kernel, makes the check say so and judge nothing."""
    toy.candidate.write_text(toy.candidate.read_text().replace("toy_decode", "toy_renamed"))
    outcome = check_candidate(toy.kernel)
    assert outcome.status == "not run"
    assert outcome.words == "no candidate of this kernel stands in notebooks/candidates/qsa.packed_decode"


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ("Author: nobody\n", "no line that gives kernel.py the licence Apache-2.0"),
        ("kernel.py: SPDX-License-Identifier: MIT\n", "no line that gives kernel.py the licence Apache-2.0"),
        (b"\xff\xfe", "LICENSE.txt is missing or no text"),
    ],
    ids=["no line", "another licence", "no text"],
)
def test_the_licence_note_names_each_source(toy: Any, note: str | bytes, words: str) -> None:
    """A note without the right line for a source is a finding."""
    (toy.folder / "LICENSE.txt").write_bytes(note if isinstance(note, bytes) else note.encode())
    assert words in check_licence(toy.kernel).words


def test_a_header_with_another_licence_is_found(toy: Any) -> None:
    """A source need not name its licence; one that names another than the contract is a finding."""
    toy.export_source(f"# SPDX-License-Identifier: MIT\n{toy.source.read_text()}")
    assert check_licence(toy.kernel).words == "kernel.py says 'MIT'; the contract says 'Apache-2.0'"
    toy.export_source(toy.source.read_text().replace("MIT", "Apache-2.0"))
    assert check_licence(toy.kernel).status == "passed"


def test_a_source_of_another_licence_than_its_kernel_is_found(toy: Any) -> None:
    """A contract that contradicts itself is a finding too."""
    toy.edit_contract(lambda c: c.update(license="MIT"))
    assert "gives kernel.py the licence Apache-2.0 and the kernel MIT" in check_licence(toy.kernel).words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e.update(source_sha256="0" * 64), f"source_sha256 '{'0' * 64}' instead of"),
        (lambda e: e.update(kernel="other"), "kernel 'other' instead of 'toy_decode'"),
        (lambda e: e.pop("op"), "op None instead of 'qsa.packed_decode'"),
        (lambda e: e.update(capability=[12, 0]), "capability [12, 0] instead of [9, 0]"),
    ],
    ids=["source", "kernel", "op", "architecture"],
)
def test_evidence_of_something_else_is_found(toy: Any, change: Callable[[dict[str, Any]], None], words: str) -> None:
    """A file with the cited hash that speaks of another source, kernel, op or architecture is no evidence."""
    toy.edit_evidence(change)
    assert words in check_evidence(toy.kernel).words


def test_evidence_that_is_missing_linked_or_no_json_is_found(toy: Any, tmp_path: Path) -> None:
    """Each of them is one finding with its reason."""
    toy.evidence.rename(tmp_path / "elsewhere.json")
    assert check_evidence(toy.kernel).words == "reports/evidence/toy_decode/v1/sm90.json is missing"
    toy.evidence.symlink_to(tmp_path / "elsewhere.json")
    assert "is a link to" in check_evidence(toy.kernel).words
    toy.evidence.unlink()
    toy.evidence.write_text("[]")
    digest = "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"
    toy.edit_contract(lambda c: c["architectures"][0]["evidence"].update(sha256=digest))
    assert check_evidence(toy.kernel).words == "reports/evidence/toy_decode/v1/sm90.json is no JSON object"


def test_a_kernel_without_a_qualified_architecture_has_no_evidence_to_check(toy: Any) -> None:
    """No citation is no pass."""
    toy.edit_contract(lambda c: c["architectures"][0].update(status="compiled", evidence=None))
    assert check_evidence(toy.kernel).status == "not run"
    assert recorded_versions(toy.kernel) == {}


def test_versions_come_from_the_evidence(toy: Any) -> None:
    """The compiler's version is the one that the cited run recorded."""
    toy.edit_evidence(lambda e: e["provenance"].update(versions={"triton": "0.1"}))
    assert recorded_versions(toy.kernel) == {"triton": "0.1"}
