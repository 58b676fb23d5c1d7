"""Child process of the export: import a kernel's file where kda_lab cannot be imported, and find its entry.

Arguments: the file, the name of the entry function. Imports nothing but what the kernel imports itself.
"""

import importlib.abc
import importlib.util
import sys
from types import ModuleType


class NoLaboratory(importlib.abc.MetaPathFinder):
    """Makes kda_lab look as if it were not installed."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """Refuse kda_lab and everything in it; leave all else to the other finders."""
        if fullname.split(".")[0] == "kda_lab":
            raise ModuleNotFoundError(
                f"No module named {fullname!r} (an exported kernel must not need it)", name=fullname
            )
        return


def import_alone(file: str) -> ModuleType:
    """Import a Python file where kda_lab is not to be found."""
    sys.meta_path.insert(0, NoLaboratory())
    spec = importlib.util.spec_from_file_location("exported_kernel", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Triton finds the source of its functions through this entry.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Import the file; a traceback and a non-zero exit when it fails or has no such entry."""
    file, entry = sys.argv[1:3]
    if not callable(getattr(import_alone(file), entry, None)):
        raise AttributeError(f"{file} has no function called {entry!r}")


if __name__ == "__main__":
    main()
