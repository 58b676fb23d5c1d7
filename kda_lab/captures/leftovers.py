"""What a killed writer leaves beside and in a set's folder: found by name, and cleared at the next write.

Scratch folders are called `.<set>.new-…` (being written) and `.<set>.old-…` (being replaced). A write that was
killed between the two renames of a replacement leaves no set, and the whole old folder in `.<set>.old-…/set`.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Literal

from kda_lab.captures.format import MANIFEST

OLD_SET = "set"
"""Where the replaced set lies in its scratch folder."""
_RANDOM = "[a-z0-9_]{8}"
"""What `tempfile` ends a name in. It has no dot, so that a set `a` never takes the scratch of a set `a.b`."""
_HALF_FILE = re.compile(rf"\.(.+\.safetensors|.+\.txt|{re.escape(MANIFEST)})\.{_RANDOM}")


def scratch_prefix(target: Path, kind: Literal["new", "old"]) -> str:
    """How the name of a scratch folder of this set begins."""
    return f".{target.name}.{kind}-"


def recover(target: Path) -> list[str]:
    """Put back the set that a killed replacement took away, then remove scratch folders and half-written files.

    Call it under the folder's lock: whoever else wrote here is dead then.

    Args:
        target: folder of the set; it need not exist.
    Returns:
        Names of what was removed or put back, sorted.
    """
    old, new = _scratch(target, "old"), _scratch(target, "new")
    kept = next((path / OLD_SET for path in old if (path / OLD_SET).exists()), None)
    if kept is not None and not target.exists():
        kept.rename(target)
    for path in (*old, *new):
        shutil.rmtree(path, ignore_errors=True)
    halves = [p for p in _children(target) if p.is_file() and _HALF_FILE.fullmatch(p.name)]
    for path in halves:
        path.unlink(missing_ok=True)
    return sorted(path.name for path in (*old, *new, *halves))


def _scratch(target: Path, kind: Literal["new", "old"]) -> list[Path]:
    name = re.compile(re.escape(scratch_prefix(target, kind)) + _RANDOM)
    return [p for p in _children(target.parent) if name.fullmatch(p.name) and p.is_dir() and not p.is_symlink()]


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
