"""The command line: fast help, clean refusals, exit codes, and answers that need no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kda_lab import cli
from kda_lab.batch import machine_check, runner
from kda_lab.captures.synthetic import synthetic_set
from kda_lab.contracts.model import Contract
from kda_lab.dispatch import dispatcher
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.errors import ParameterError
from kda_lab.run_folder import RunFolder, write_json

TOY = Path(__file__).parent / "export" / "toy_candidate.py"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "small"
    return Path(synthetic_set("qsa.packed_decode", folder, seed=1, labels=["tp2-B1-short"]))


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder with one contract, read by the dispatcher of the commands."""
    from kda_lab.export.candidate import read_candidate

    declaration = read_candidate(TOY).declaration
    evidence = {"path": "reports/evidence/toy_decode/v1/sm90.json", "sha256": "0" * 64}
    contract = Contract.model_validate(
        {
            **declaration.model_dump(),
            "version": 3,
            "sources": [{"path": "kernel.py", "sha256": "0" * 64, "language": "triton", "license": "Apache-2.0"}],
            "provenance": {"task": "t", "author": "a", "commit": "c", "run": "r", "kda_lab": "0"},
            "dispatched": [{"axes": {"B": {"minimum": 1, "maximum": 4}, "HQ": 12, "HKV": 1}}],
            "architectures": [{"capability": [9, 0], "status": "qualified", "evidence": evidence}],
            "tolerances": [],
            "gate_power": {"killed": 1, "total": 1, "mutants": []},
            "benchmarks": [],
            "headline": [{"baseline": "slow", "geomean": 2.5, "minimum": 1.25, "count": 6}],
        }
    )
    write_json(tmp_path / "toy_decode" / "contract.json", contract.model_dump(mode="json"))
    monkeypatch.setattr(dispatcher, "DISPATCHER", Dispatcher(tmp_path))
    return tmp_path


def test_help_loads_nothing_heavy() -> None:
    """Help imports neither torch nor triton nor anything of Jupyter, so it answers at once."""
    code = (
        "import sys; from typer.testing import CliRunner; from kda_lab.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'torch', 'triton', 'numpy', 'papermill', 'nbformat', 'matplotlib', 'pandas', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_command_is_there() -> None:
    """The commands of the documentation exist, and each explains itself."""
    for command in ("doctor", "run", "report", "export", "captures list", "captures show", "captures verify"):
        assert run(*command.split(), "--help").exit_code == 0, command
    for command in ("kernels list", "kernels show", "kernels explain"):
        assert run(*command.split(), "--help").exit_code == 0, command


def test_doctor_says_what_there_is() -> None:
    """On a complete machine doctor exits 0 and lists device and packages."""
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert "Triton interpreter" in result.output and "everything required is there" in result.output


def test_doctor_fails_when_something_required_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing requirement is named and the exit code is 1."""
    report = machine_check.MachineReport({}, (), ("triton",))
    monkeypatch.setattr(machine_check, "examine", lambda: report)
    result = run("doctor")
    assert (result.exit_code, "missing: triton" in result.output) == (1, True)


def test_captures_commands(captures: Path) -> None:
    """List, show and verify read a set; a damaged one fails verification with exit code 1."""
    assert "qsa.packed_decode" in run("captures", "list", "--root", str(captures.parent)).output
    assert "tp2-B1-short" in run("captures", "show", str(captures)).output
    one = run("captures", "show", str(captures), "tp2-B1-short").output
    assert "cu_seqlens_k" in one and "bfloat16" in one and "folded" in one
    assert run("captures", "verify", str(captures)).exit_code == 0
    file = next(captures.glob("*.safetensors"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged = run("captures", "verify", str(captures))
    file.write_bytes(whole)
    assert (damaged.exit_code, "1 faults" in damaged.output) == (1, True)


def test_refusals_are_one_clean_line_with_exit_code_2(captures: Path, tmp_path: Path) -> None:
    """An error of the package prints no traceback; nested commands behave alike."""
    for arguments in (["captures", "show", str(captures), "nothing"], ["captures", "list", "--root", str(tmp_path)]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert (
            result.output.startswith("error: ") and "Traceback" not in result.output and result.output.count("\n") == 1
        )


def test_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything that is not a refusal of the package is not dressed up as one."""
    monkeypatch.setattr(machine_check, "examine", lambda: 1 / 0)
    assert isinstance(run("doctor").exception, ZeroDivisionError)


@pytest.mark.parametrize("code", [0, 1, 3])
def test_run_hands_on_the_exit_code(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The verdict's code is the command's; options reach the runner with their types."""
    seen: dict[str, Any] = {}

    def fake(notebook: Path, parameters: dict[str, str], out: Path, **options: Any) -> int:
        seen.update(options, notebook=notebook, parameters=parameters, out=out)
        return code

    monkeypatch.setattr(runner, "run_notebook", fake)
    result = run("run", "20_verify.ipynb", "-p", "rows=3", "-p", "name=a=b", "--timeout", "5", "--fresh", "--no-report")
    assert result.exit_code == code
    assert seen == {
        "notebook": Path("20_verify.ipynb"),
        "parameters": {"rows": "3", "name": "a=b"},
        "out": Path("reports/20_verify"),
        "timeout_s": 5.0,
        "resume": False,
        "report": False,
    }


def test_run_refuses_bad_usage_with_exit_code_2() -> None:
    """A missing notebook and an option without `=` are refused before anything starts."""
    assert "notebook is 'absent.ipynb'" in run("run", "absent.ipynb").output
    result = run("run", "absent.ipynb", "-p", "rows")
    assert (result.exit_code, "-p is 'rows'; allowed: name=value" in result.output) == (2, True)


def test_report_writes_pages_and_index(tmp_path: Path) -> None:
    """Every run below the folder gets its page, and the index lists them."""
    write_json(
        RunFolder.at(tmp_path / "one").verdict,
        {"passed": True, "sentence": "pass: fine", "evidence": {}, "failures": []},
    )
    result = run("report", "--reports", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "one" / "index.html").is_file() and "one" in (tmp_path / "index.html").read_text()


def test_report_of_a_missing_run(tmp_path: Path) -> None:
    """A run folder that is not there is refused, not created."""
    result = run("report", str(tmp_path / "absent"), "--reports", str(tmp_path))
    assert (result.exit_code, "absent" in result.output, (tmp_path / "absent").exists()) == (2, True, False)


def test_export_names_the_gate_that_failed(captures: Path, tmp_path: Path) -> None:
    """A run without records fails at the evidence gate, exit code 2, and no kernel appears."""
    folder = RunFolder.at(tmp_path / "run").path
    result = run(
        "export", str(folder), str(TOY), "--captures", str(captures), "--kernels-dir", str(tmp_path / "kernels")
    )
    assert result.exit_code == 2 and "error: export.evidence: runs is" in result.output
    assert not (tmp_path / "kernels").exists()


def test_export_wants_runs_that_exist(tmp_path: Path) -> None:
    """A mistyped run folder is refused by its path."""
    result = run("export", str(tmp_path / "absent"), str(TOY))
    assert (result.exit_code, "run is" in result.output) == (2, True)


def test_kernels_list_and_show(kernels: Path) -> None:
    """The list gives version, architectures and headline; show prints the contract; an unknown name lists the known."""
    listed = run("kernels", "list").output
    assert "toy_decode" in listed and "sm90 qualified" in listed and "2.5x (min 1.25x, n 6) over slow" in listed
    assert json.loads(run("kernels", "show", "toy_decode").output)["version"] == 3
    assert "kernel is 'other'; allowed: toy_decode" in run("kernels", "show", "other").output


AXES = ["--axis", "B=4", "--axis", "HQ=12", "--axis", "HKV=1", "--axis", "N=64"]
SCALARS = ["--scalar", "max_seqlen_k=2051", "--scalar", "max_seqlen_q=1"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([], "qsa.packed_decode: kernel toy_decode"),
        (["--capability", "12.1"], "raises ContractError"),
        (["--scalar", "softmax_scale=0.1"], "kernel toy_decode"),
        (["--dtype", "float16"], "q.dtype is torch.float16"),
    ],
)
def test_explain_answers_for_any_gpu(kernels: Path, change: list[str], words: str) -> None:
    """Shapes and capability are enough for the decision; each refusal names the field."""
    result = run(
        "kernels",
        "explain",
        "qsa.packed_decode",
        *AXES,
        *SCALARS,
        *(["--capability", "9.0"] if "--capability" not in change else []),
        *change,
    )
    assert result.exit_code == 0 and words in result.output, result.output


def test_explain_wants_every_axis(kernels: Path) -> None:
    """A missing or misspelt axis is refused with the names of all."""
    result = run("kernels", "explain", "qsa.packed_decode", "--axis", "B=4", "--axis", "b=4", "--capability", "9.0")
    assert result.exit_code == 2
    for words in ("axis HQ is 'absent'", "axis b is '4'", "--axis NAME=extent for each of"):
        assert words in result.output


PACKED = {"B": 4, "HV": 12, "V": 128, "K": 128, "C": 4608, "G": 1536, "S": 8}
REPLAY = {**PACKED, "H": 12, "L": 16}


@pytest.mark.parametrize(
    ("op", "axes", "scalars", "words"),
    [
        ("packed_decode", PACKED, ["lower_bound=-5"], "kernel kda_packed_decode_tiled"),
        ("packed_decode", {**PACKED, "C": 4600}, [], "mixed_qkv.shape[1] is 4600; allowed: 2·H·K + HV·V"),
        ("packed_decode", {**PACKED, "G": 1530}, [], "a.shape[1] is 1530; allowed: 1536"),
        ("packed_decode", {**PACKED, "K": 0}, [], "state.shape[3] is 0; allowed: 1 or more"),
        ("packed_decode", PACKED, ["lower_bound=-9"], "lower_bound is -9; allowed: None, or a float >= -5"),
        ("replay_decode", REPLAY, ["predecayed=true", "lower_bound=-5.0"], "kernel kda_replay_decode_checkpoint"),
        ("replay_decode", {**REPLAY, "L": 32}, ["predecayed=true", "lower_bound=-1.0"], "allowed: 2 to 16 places"),
    ],
)
def test_explain_asks_the_rules_of_the_op(op: str, axes: dict[str, int], scalars: list[str], words: str) -> None:
    """Widths that are products, the bound and the ring: what the door refuses, the explanation refuses."""
    flags = ["circular=false", "predecayed=false", "force_flush=false"] if op == "replay_decode" else []
    given = dict(pair.split("=") for pair in (*flags, *scalars))
    asked = [part for n, extent in axes.items() for part in ("--axis", f"{n}={extent}")]
    asked += [part for n, value in given.items() for part in ("--scalar", f"{n}={value}")]
    kernel = {"packed_decode": "kda_packed_decode_tiled", "replay_decode": "kda_replay_decode_checkpoint"}[op]
    result = run("kernels", "explain", f"kda.{op}", "--capability", "9.0", "--kernel", kernel, *asked)
    assert result.exit_code == 0 and words in result.output, result.output
    assert ("raises ContractError" in result.output) == ("allowed" in words)


QSA = {"B": 4, "HQ": 24, "HKV": 2, "N": 64}
GEMM = {"M": 8, "N": 18432, "K": 2560}


@pytest.mark.parametrize(
    ("op", "axes", "scalars", "words"),
    [
        ("qsa.packed_decode", QSA, ["max_seqlen_q=1"], "kernel qsa_packed_decode_clustered"),
        ("qsa.packed_decode", QSA, ["max_seqlen_q=2"], "every kernel: max_seqlen_q is 2; allowed: 1. QSA requires"),
        ("qsa.packed_decode", QSA, ["max_seqlen_q=true"], "every kernel: max_seqlen_q is True; allowed: 1."),
        ("nvfp4.gemm", GEMM, ["out_dtype=bfloat16"], "kernel nvfp4_gemm_streamed"),
        ("nvfp4.gemm", GEMM, ["out_dtype=float32"], "kernel nvfp4_gemm_streamed"),
    ],
)
def test_explain_asks_the_rules_of_other_doors(op: str, axes: dict[str, int], scalars: list[str], words: str) -> None:
    """One query row a sequence is QSA's own demand; an imagined output has the dtype that is asked for."""
    given = [*scalars, "max_seqlen_k=2051"] if op == "qsa.packed_decode" else scalars
    asked = [part for n, extent in axes.items() for part in ("--axis", f"{n}={extent}")]
    asked += [part for value in given for part in ("--scalar", value)]
    result = run("kernels", "explain", op, "--capability", "9.0", *asked)
    assert result.exit_code == 0 and words in result.output, result.output
    assert ("raises ContractError" in result.output) == ("allowed" in words)


def test_explain_without_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any export there is nothing to explain, and the message says what to do."""
    monkeypatch.setattr(dispatcher, "DISPATCHER", Dispatcher(tmp_path))
    assert "Export one first" in run("kernels", "explain", "qsa.packed_decode", *AXES).output


@pytest.mark.parametrize("text", ["9", "9.x", "sm90", "."])
def test_capability_is_two_numbers(text: str) -> None:
    """Only `major.minor` is a capability."""
    with pytest.raises(ParameterError, match=r"allowed: major\.minor, such as 9\.0 or 12\.1"):
        cli.capability_of(text)


def test_option_twice_is_refused() -> None:
    """A name given twice would hide one of its values."""
    with pytest.raises(ParameterError, match="each name once"):
        cli.pairs(["a=1", "a=2"], "-p")


def test_runs_shows_verdicts_and_fails_unless_all_passed(tmp_path: Path) -> None:
    """One table; exit code 1 as soon as one run did not pass."""
    for name, passed in (("good", True), ("bad", False)):
        write_json(RunFolder.at(tmp_path / name).verdict, {"passed": passed, "sentence": "", "evidence": {}})
    found = run("runs", str(tmp_path / "good"))
    assert (found.exit_code, "PASSED" in found.output) == (0, True)
    found = run("runs", str(tmp_path / "good"), str(tmp_path / "bad"))
    assert (found.exit_code, "FAILED" in found.output) == (1, True)
