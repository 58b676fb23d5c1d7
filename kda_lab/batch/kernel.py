"""The kernel process of a run: this very Python, a private Jupyter and IPython folder, no look-up by name.

A kernel called `python3` may be any interpreter that some Jupyter folder names; and a start-up file in
somebody's home would be part of every record. Neither happens here, and no home folder is needed. Cells and
outputs travel through sockets in the private folder, so that nobody else on the machine can read them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from kda_lab import runtime

LONGEST_SOCKET_FOLDER = 80
"""Characters; a Unix socket's path holds about a hundred, and the socket's own name comes behind the folder."""


class ThisPythonKernelManager(AsyncKernelManager):
    """Starts `ipykernel` in the interpreter that runs this code; its files live in a folder of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._home = Path(tempfile.mkdtemp(prefix="kda_lab_kernel_"))
        # A kernel that had to be killed skips the orderly clean-up below; this runs whatever happens.
        self._remove = weakref.finalize(self, shutil.rmtree, self._home, True)
        self.connection_file = str(self._home / "connection.json")
        if len(str(self._home)) < LONGEST_SOCKET_FOLDER:
            self.transport = "ipc"
            self.ip = str(self._home / "socket")

    @property
    def kernel_spec(self) -> KernelSpec:
        """A fixed specification; the name that a notebook asks for is not looked up."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python (this interpreter)", language="python")

    async def _async_pre_start_kernel(self, **kw: Any) -> tuple[list[str], dict[str, Any]]:
        private = {"IPYTHONDIR": str(self._home), "JUPYTER_RUNTIME_DIR": str(self._home)}
        kw["env"] = runtime.child_environment({**private, "JUPYTER_PLATFORM_DIRS": "1"})
        return await super()._async_pre_start_kernel(**kw)

    async def _async_cleanup_resources(self, restart: bool = False) -> None:
        await super()._async_cleanup_resources(restart=restart)
        if not restart:
            self._remove()
