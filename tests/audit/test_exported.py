"""The audit of exported kernels: clean as exported, and for each fault the one check that has to find it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kda_lab.audit.exported import Depth, audit_exported
from kda_lab.audit.exported_model import CHECKS, Places
from kda_lab.errors import AuditError

pytestmark = pytest.mark.usefixtures("compiled_before", "replayed_before")
TOY_TEXT = (Path(__file__).parents[1] / "export" / "toy_candidate.py").read_text()


def test_an_untouched_export_is_clean(toy: Any) -> None:
    """Every check runs once, in order, and passes; the sentence counts them."""
    audit = audit_exported(toy.places)
    assert [o.check for o in audit.outcomes] == list(CHECKS)
    assert {o.check: o.words for o in audit.outcomes if o.status != "passed"} == {}
    assert audit.passed
    assert audit.sentence == f"clean: 1 exported kernels, {len(CHECKS)} checks passed, 0 noted, 0 not run"


def test_the_audit_is_the_same_every_time(toy: Any) -> None:
    """Two audits of one state are equal, words included."""
    assert audit_exported(toy.places) == audit_exported(toy.places)


def _one_byte(toy: Any) -> None:
    toy.source.write_bytes(toy.source.read_bytes() + b"\n")


def _unlisted_code(toy: Any) -> None:
    (toy.folder / "extra.py").write_text("x = 1\n")


def _broken_contract(toy: Any) -> None:
    (toy.folder / "contract.json").write_text("{")


def _no_licence(toy: Any) -> None:
    (toy.folder / "LICENSE.txt").unlink()


def _evidence_altered(toy: Any) -> None:
    toy.evidence.write_text(toy.evidence.read_text() + " ")


def _ratio_edited(toy: Any) -> None:
    def change(contract: dict[str, Any]) -> None:
        contract["benchmarks"][0].update(ratio=4.0, kernel_us=5.0)
        contract["headline"][0].update(geomean=4.0, minimum=4.0)

    toy.edit_contract(change)


def _forbidden_import(toy: Any) -> None:
    toy.export_source(TOY_TEXT.replace("import torch\n", "import torch\nimport kda_lab\n", 1))


def _other_callable(toy: Any) -> None:
    toy.edit_contract(lambda c: c["callable"][0]["axes"]["B"].update(maximum=256))


def _signature_changed(toy: Any) -> None:
    toy.export_source(TOY_TEXT.replace("def packed_decode(q, k, v,", "def packed_decode(q, v, k,"))


def _door_changed(toy: Any) -> None:
    toy.export_source(TOY_TEXT.replace("max_seqlen_q=1", "max_seqlen_q=2"))


def _unit_lost(toy: Any) -> None:
    toy.edit_contract(lambda c: c["architectures"][0]["resources"].clear())


def _registers_edited(toy: Any) -> None:
    toy.edit_contract(lambda c: c["architectures"][0]["resources"][0].update(registers=1))


def _other_architecture(toy: Any) -> None:
    def change(contract: dict[str, Any]) -> None:
        contract["architectures"][1] |= {
            "status": "compiled",
            "resources": contract["architectures"][0]["resources"],
        }

    toy.edit_contract(change)


@pytest.mark.parametrize(
    ("tamper", "check", "words"),
    [
        (_broken_contract, "contract", r"unreadable"),
        (_one_byte, "sources", r"kernel\.py has the hash \w{12}; the contract says \w{12}"),
        (_unlisted_code, "sources", r"extra\.py is code that the contract does not list"),
        (_no_licence, "licence", r"LICENSE\.txt is missing"),
        (_evidence_altered, "evidence", r"sm90\.json has the hash \w{12}; the contract cites \w{12}"),
        (_ratio_edited, "claims", r"tp2-B1 over slow differs from the evidence in kernel_us, ratio"),
        (_forbidden_import, "imports", r"import is 'kda_lab'; allowed: torch, triton"),
        (_other_callable, "declaration", r"differ in callable"),
        (_signature_changed, "signature", r"takes by position \['q', 'v', 'k'"),
        (_door_changed, "door", r"default of max_seqlen_q is 1 in the door and 2 in the entry"),
        (_unit_lost, "compile", r"sm90 has 1 compile units and resources of 0"),
        (_registers_edited, "resources", r"registers is \d+, the contract says 1"),
        (_other_architecture, "architectures", r"holds sm_90a?: no kernel image for sm_120"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_each_fault_fails_exactly_its_check(toy: Any, tamper: Callable[[Any], None], check: str, words: str) -> None:
    """One fault, one failed check, a finding with its rule and the words that say what is wrong."""
    tamper(toy)
    audit = audit_exported(toy.places)
    assert toy.failed(audit) == {check}
    finding = audit.findings[0]
    assert (finding.rule, finding.category) == (CHECKS[check], check)
    assert re.search(words, finding.lost)
    assert not audit.passed


def test_a_candidate_that_moved_on_is_noted(toy: Any) -> None:
    """A changed candidate says since which version, and the audit stays clean: the export is what it was."""
    toy.candidate.write_text(TOY_TEXT + "\n# better now\n")
    audit = audit_exported(toy.places)
    (outcome,) = (o for o in audit.outcomes if o.check == "candidate")
    assert outcome.status == "noted"
    assert outcome.words.startswith("candidate moved on since version 1: notebooks/candidates/qsa.packed_decode/toy.py")
    assert audit.passed


def test_a_broken_contract_leaves_nothing_judged(toy: Any) -> None:
    """Without a contract no other check runs, and none of them is called passed."""
    _broken_contract(toy)
    assert {o.status for o in audit_exported(toy.places).outcomes} == {"failed", "not run"}


@given(cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_contract_cut_anywhere_is_one_finding(toy: Any, pristine_toy: Any, cut: float) -> None:
    """A truncated contract never ends in a traceback, and never in a clean audit."""
    whole = (pristine_toy.folder / "contract.json").read_bytes()
    (toy.folder / "contract.json").write_bytes(whole[: int(len(whole) * cut)])
    audit = audit_exported(toy.places)
    assert toy.failed(audit) == {"contract"}
    assert len(audit.findings) == 1


def test_altered_sources_are_not_loaded(toy: Any) -> None:
    """A source that is not the hashed one is compiled and read, never imported."""
    _one_byte(toy)
    words = {o.check: o.words for o in audit_exported(toy.places).outcomes if o.status == "not run"}
    assert set(words) == {"replay", "path", "gates"}
    assert words["replay"] == "the sources are not those of the contract: not loaded"


def test_a_missing_source_stops_what_needs_it(toy: Any) -> None:
    """A kernel without its host code fails one check; what would read, compile or run it says so."""
    toy.source.unlink()
    audit = audit_exported(toy.places)
    assert toy.failed(audit) == {"sources"}
    assert {o.words for o in audit.outcomes if o.check in ("compile", "replay", "imports")} == {"a source is missing"}


def test_two_kernels_are_audited_apart(toy: Any) -> None:
    """A fault of one kernel is reported of that one; `only` leaves the other out."""
    other = shutil.copytree(toy.folder, toy.places.kernels / "toy_other")
    (other / "contract.json").write_text((other / "contract.json").read_text().replace('"toy_decode"', '"toy_other"'))
    audit = audit_exported(toy.places)
    assert audit.kernels == ("toy_decode", "toy_other")
    assert {o.kernel for o in audit.outcomes if o.status == "failed"} == {"toy_other"}
    assert audit_exported(toy.places, only="toy_decode").passed


def test_an_unknown_kernel_is_refused(toy: Any) -> None:
    """The text lists the kernels that there are."""
    with pytest.raises(AuditError, match=r"kernel is 'absent'; allowed: toy_decode\."):
        audit_exported(toy.places, only="absent")


def test_a_folder_without_kernels_is_refused(tmp_path: Path) -> None:
    """Nothing to audit is an error, never a clean audit."""
    with pytest.raises(AuditError, match=r"kernels is '.*nothing'; allowed: a folder of exported kernels"):
        audit_exported(Places(tmp_path, tmp_path / "nothing"))


def test_progress_and_depth_are_said(toy: Any) -> None:
    """Each stage is announced before it starts, and the scope names what was left out."""
    lines: list[str] = []
    audit = audit_exported(toy.places, depth=Depth(every_unit=True), say=lines.append)
    assert lines == [f"toy_decode: {stage}" for stage in ("contract", "source", "cold compile", "replay")]
    assert audit.scope == "every compile unit; the smallest capture of each op"
    assert Depth().words == "the first compile unit of each function and architecture; the smallest capture of each op"
    assert Depth(every_capture=True).words.endswith("every capture")
