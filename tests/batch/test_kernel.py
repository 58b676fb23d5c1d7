"""The kernel of a run is this interpreter, in a folder of its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from kda_lab.batch import kernel
from kda_lab.batch.kernel import ThisPythonKernelManager


def test_specification_is_this_python_whatever_the_name() -> None:
    """No look-up by name: a kernel name that is not installed still starts this interpreter."""
    manager = ThisPythonKernelManager(kernel_name="no_such_kernel")
    assert manager.kernel_spec.argv[:3] == [sys.executable, "-m", "ipykernel_launcher"]
    folder = Path(manager.connection_file).parent
    assert folder.name.startswith("kda_lab_kernel_") and folder.is_dir()
    asyncio.run(manager._async_cleanup_resources())
    assert not folder.exists()


def test_environment_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython's and Jupyter's folders are the manager's own; everything else is inherited."""
    monkeypatch.setenv("KDA_LAB_TEST_MARK", "inherited")
    monkeypatch.setenv("IPYTHONDIR", "/somewhere/else")
    manager = ThisPythonKernelManager()

    async def environment() -> dict[str, str]:
        _, keywords = await manager._async_pre_start_kernel()
        return dict(keywords["env"])

    found = asyncio.run(environment())
    folder = str(Path(manager.connection_file).parent)
    assert (found["IPYTHONDIR"], found["JUPYTER_RUNTIME_DIR"], found["KDA_LAB_TEST_MARK"]) == (
        folder,
        folder,
        "inherited",
    )
    asyncio.run(manager._async_cleanup_resources())


def test_long_temporary_folder_falls_back_to_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets in the private folder where their path is short enough; else the loopback interface."""
    assert ThisPythonKernelManager().transport == "ipc"
    monkeypatch.setattr(kernel, "LONGEST_SOCKET_FOLDER", 3)
    assert ThisPythonKernelManager().transport == "tcp"


def test_folder_goes_with_the_manager() -> None:
    """A manager that never got to clean up leaves no folder behind."""
    manager = ThisPythonKernelManager()
    folder = Path(manager.connection_file).parent
    manager._remove()
    assert not folder.exists()
