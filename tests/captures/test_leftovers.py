"""What a killed writer left goes away at the next write, and a set that it had moved away comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kda_lab.captures.leftovers import recover, scratch_prefix
from kda_lab.captures.store import CaptureDraft, CaptureSet, SetWriter, write_set
from kda_lab.errors import CaptureError

Draft = Callable[..., CaptureDraft]
Pools = dict[str, dict[str, torch.Tensor]]
KILLED = """
import os, signal, sys
from pathlib import Path
from kda_lab.captures import writing

def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "manifest":
    writing._write_manifest = die
else:
    rename, done = Path.rename, []
    def once(self, target):
        return die() if done else done.append(rename(self, target))
    Path.rename = once
writing.write_set(Path(sys.argv[1]), "test.op", [], texts={"a.txt": b"new"}, replace=True)
"""


def killed(path: Path, at: str) -> None:
    """Replace the set in a process that is killed before its manifest, or between the two renames."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), at], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def names(folder: Path) -> list[str]:
    """What lies there, the lock left out."""
    return sorted(p.name for p in folder.iterdir() if p.name != ".set.lock")


@pytest.mark.parametrize("at", ["manifest", "rename"])
def test_a_killed_replacement_loses_no_set(
    tmp_path: Path, small_set: Path, draft: Draft, pools: Pools, at: str
) -> None:
    """The old set stands there at the next write, which is refused without replace=True, and no scratch is left."""
    killed(small_set, at)
    assert any(name.startswith(".set.new-") for name in names(tmp_path))
    assert small_set.exists() == (at == "manifest")
    with pytest.raises(CaptureError, match="allowed: a folder that does not exist"):
        write_set(small_set, "test.op", [draft("new")], pools=pools)
    assert names(tmp_path) == ["set"] and CaptureSet.open(small_set).names() == ["one", "two"]
    write_set(small_set, "test.op", [draft("new")], pools=pools, replace=True)
    assert names(tmp_path) == ["set"] and CaptureSet.open(small_set).names() == ["new"]


def test_a_writer_clears_its_folder(tmp_path: Path, draft: Draft) -> None:
    """Half-written files of a killed writer go when the set is continued; the set and other files stay."""
    path = tmp_path / "live"
    SetWriter(path, "test.op").add(replace(draft("a"), gathers={}))
    for prefix in (".b.safetensors.", ".manifest.json.", ".notes.md."):
        Path(tempfile.mkstemp(dir=path, prefix=prefix)[1]).write_bytes(b"half")
    Path(tempfile.mkdtemp(dir=tmp_path, prefix=scratch_prefix(path, "new")))
    SetWriter(path, "test.op").add(replace(draft("b"), gathers={}))
    assert sorted(p.name.split(".")[1] for p in path.iterdir() if p.name.startswith(".")) == ["notes"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".live.lock", "live"]
    assert CaptureSet.open(path).names() == ["a", "b"] and CaptureSet.open(path).verify() == []


def test_a_second_writer_clears_nothing(tmp_path: Path) -> None:
    """Scratch of a writer that lives is not touched: the refusal comes first."""
    writer = SetWriter(tmp_path / "set", "test.op")
    scratch = Path(tempfile.mkdtemp(dir=tmp_path, prefix=".set.new-"))
    for write in (lambda: SetWriter(writer.path, "test.op"), lambda: write_set(writer.path, "test.op", [])):
        with pytest.raises(CaptureError, match="a folder with one writer"):
            write()
    assert scratch.is_dir()


def test_only_names_of_this_set_are_taken(tmp_path: Path) -> None:
    """A set called `a` leaves alone what belongs to `a.b`, files, links and folders of other names."""
    other = Path(tempfile.mkdtemp(dir=tmp_path, prefix=scratch_prefix(tmp_path / "a.new-b", "new")))
    kept = [other, tmp_path / ".a.new-b", tmp_path / ".a.new-12345678", tmp_path / ".a.old-link1234", tmp_path / ".a.b"]
    kept[1].mkdir()
    kept[2].write_bytes(b"")
    kept[3].symlink_to(other)
    kept[4].mkdir()
    mine = [
        Path(tempfile.mkdtemp(dir=tmp_path, prefix=scratch_prefix(tmp_path / "a", kind))) for kind in ("new", "old")
    ]
    assert recover(tmp_path / "a") == sorted(p.name for p in mine)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert recover(tmp_path / "absent" / "a") == []
