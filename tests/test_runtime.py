"""The machine: variables, devices, optional packages, provenance."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kda_lab import runtime
from kda_lab.errors import ParameterError, UnavailableError


def test_only_listed_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the table is stripped; one that is not there is a programming error."""
    monkeypatch.setenv("KDA_LAB_KERNEL", " grouped ")
    assert runtime.environment("KDA_LAB_KERNEL") == "grouped"
    with pytest.raises(KeyError, match="KDA_LAB_OTHER is not in"):
        runtime.environment("KDA_LAB_OTHER")


def test_every_variable_is_documented() -> None:
    """The table in the module's docstring names each variable."""
    assert all(f"| {name} " in (runtime.__doc__ or "") for name in runtime.ENVIRONMENT_VARIABLES)


@pytest.mark.parametrize(
    "failure", ["AssertionError()", "ImportError('no')", "OSError('libcuda')", "RuntimeError('v')"]
)
def test_an_optional_import_may_fail_in_any_way(failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever importing raises becomes a reason; FlashInfer 0.6.18 raises AssertionError without a GPU."""
    name = f"optional_{abs(hash(failure))}"
    (tmp_path / f"{name}.py").write_text(f"raise {failure}")
    monkeypatch.syspath_prepend(tmp_path)
    found = runtime.import_optional(name)
    assert found.module is None
    assert found.reason.startswith(f"unavailable, because importing {name} raised {failure.split('(')[0]}")


def test_an_optional_import_that_works_has_no_reason() -> None:
    """A module that is there comes without a reason."""
    found = runtime.import_optional("json")
    assert (found.module, found.reason) == (sys.modules["json"], "")


def test_a_missing_device_is_refused() -> None:
    """Asking for CUDA without one says what to use instead."""
    assert runtime.resolve_device("cpu") == torch.device("cpu")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert runtime.resolve_device("auto") == torch.device("cpu")
    with pytest.raises(UnavailableError, match=r"sees no CUDA device here\. Use 'cpu' or 'auto'"):
        runtime.resolve_device("cuda")


@pytest.mark.parametrize("name", ["tpu", "meta", "mps", "", "cuda:x"])
def test_other_devices_are_refused(name: str) -> None:
    """Names that torch does not know, and those it knows beside a CPU and CUDA."""
    with pytest.raises(ParameterError, match=rf"device is '{name}'; allowed: auto, cpu, cuda or cuda:N"):
        runtime.resolve_device(name)


def test_a_cpu_has_no_capability() -> None:
    """No capability for a CPU."""
    assert runtime.capability("cpu") is None


def test_provenance_names_code_packages_and_device() -> None:
    """A record can be traced back to code, command, packages and device."""
    found = runtime.provenance("cpu")
    assert {"kda_lab", "git", "command", "versions", "device", "environment"} <= set(found)
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"].keys() == {"python", "kda-lab", *runtime.PACKAGES}
    assert {"cuda-core", "nvidia-cuda-nvrtc"} <= found["versions"].keys(), "they build kernels of language cuda"
    assert found["device"]["interpreter"] == runtime.interpreter_on()


def test_a_copy_without_history_may_carry_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a checkout the commit comes from the file `.commit`, and nobody knows whether it is dirty."""
    package = tmp_path / "kda_lab"
    package.mkdir()
    monkeypatch.setattr(runtime.kda_lab, "__file__", str(package / "__init__.py"))
    assert runtime.git_state(tmp_path) == {"commit": "unknown", "dirty": None}
    (tmp_path / ".commit").write_text("abc\n")
    assert runtime.git_state(tmp_path) == {"commit": "abc", "dirty": None}


def test_a_project_path_starts_at_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths start at the checkout above the working folder; elsewhere at the working folder."""
    root = Path(__file__).parents[1]
    monkeypatch.chdir(root / "notebooks")
    assert runtime.project_path("data") == root / "data"
    assert runtime.project_path(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    assert runtime.project_path("data") == tmp_path / "data"


def test_the_environment_token_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed variable changes the token; an unlisted one does not."""
    before = runtime.environment_token()
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert runtime.environment_token() == before
    monkeypatch.setenv("KDA_LAB_DISPATCH", "off")
    assert runtime.environment_token() != before


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "on", "Yes", " y "])
def test_the_interpreter_is_on_in_every_spelling_of_triton(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Triton reads more than 1 as true, and both must agree."""
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert runtime.interpreter_on()


@pytest.mark.parametrize("value", ["", "0", "false", "off", "no", "2"])
def test_the_interpreter_is_off_otherwise(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """What Triton reads as false is off here too."""
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert not runtime.interpreter_on()


def test_unknown_variables_are_the_projects_names_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known names and those of others are left out."""
    monkeypatch.setenv("KDA_LAB_KERNEL", "x")
    monkeypatch.setenv("OTHER_KDA_LAB_X", "x")
    before = runtime.unknown_variables()
    monkeypatch.setenv("KDA_LAB_KERNELS", "x")
    assert set(runtime.unknown_variables()) - set(before) == {"KDA_LAB_KERNELS"}


@pytest.mark.parametrize(
    ("named", "count", "found"),
    [
        (None, 0, ()),
        (None, 2, ("0", "1")),
        ("3, 5", 2, ("3", "5")),
        ("GPU-1f,MIG-2", 2, ("GPU-1f", "MIG-2")),
        ("7,9", 1, ("7",)),
    ],
)
def test_visible_gpus_are_named_as_the_environment_names_them(
    monkeypatch: pytest.MonkeyPatch, named: str | None, count: int, found: tuple[str, ...]
) -> None:
    """A child that is given one of them sees the same GPU; CUDA ignores what follows the first it does not know."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert runtime.visible_gpus() == found
