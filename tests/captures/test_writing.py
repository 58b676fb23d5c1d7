"""A set appears whole or not at all, and a writer's folder opens after every call it added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kda_lab.captures import writing
from kda_lab.captures.store import CaptureSet
from kda_lab.captures.writing import CaptureDraft, SetWriter, write_set
from kda_lab.errors import CaptureError

Draft = Callable[..., CaptureDraft]
Pools = dict[str, dict[str, torch.Tensor]]


@pytest.fixture
def plain(draft: Draft) -> Draft:
    """A draft without gathered inputs."""
    return lambda *arguments: replace(draft(*arguments), gathers={})


def test_an_existing_folder_is_kept_unless_replaced(tmp_path: Path, draft: Draft, pools: Pools) -> None:
    """Without replace=True nothing changes; with it the new set stands in the place of the old."""
    path = tmp_path / "set"
    write_set(path, "test.op", [draft("one")], pools=pools)
    with pytest.raises(
        CaptureError, match=r"path is '.*set'; allowed: a folder that does not exist. Pass replace=True"
    ):
        write_set(path, "test.op", [draft("two")], pools=pools)
    assert CaptureSet.open(path).names() == ["one"]
    write_set(path, "test.op", [draft("two")], pools=pools, texts={"text.txt": b"read"}, replace=True)
    assert CaptureSet.open(path).names() == ["two"] and CaptureSet.open(path).verify() == []
    assert (path / "text.txt").read_bytes() == b"read"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".set.lock", "set"]


def test_a_failure_half_way_leaves_nothing(
    tmp_path: Path, draft: Draft, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old set stays, and no temporary folder is left."""
    path = write_set(tmp_path / "set", "test.op", [draft("one")], pools=pools)

    def broken(folder: Path, value: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(writing, "_write_manifest", broken)
    with pytest.raises(OSError, match="disk full"):
        write_set(path, "test.op", [draft("two")], pools=pools, replace=True)
    assert CaptureSet.open(path).names() == ["one"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".set.lock", "set"]


def test_a_gather_that_gives_other_bits_is_refused(tmp_path: Path, draft: Draft, pools: Pools) -> None:
    """The pool rows must be the input, bit for bit."""
    one = draft("one")
    other = replace(one, call=one.call.with_inputs(rows=one.call.inputs["rows"] + 1))
    with pytest.raises(CaptureError, match="one: rows is other bits than its pool rows; allowed: pool"):
        write_set(tmp_path / "set", "test.op", [other], pools=pools)
    assert not (tmp_path / "set").exists()


def test_a_gather_from_an_unknown_pool_is_refused(tmp_path: Path, draft: Draft) -> None:
    """The refusal lists the pools there are."""
    with pytest.raises(CaptureError, match=r"rows.gather is pool.safetensors:rows; allowed: other.safetensors:k"):
        write_set(tmp_path / "set", "test.op", [draft()], pools={"other.safetensors": {"k": torch.zeros(1)}})


@pytest.mark.parametrize("name", ["../x.safetensors", "a/b.safetensors", "manifest.json"])
def test_a_pool_name_that_is_no_plain_name_is_refused(tmp_path: Path, draft: Draft, name: str) -> None:
    """No file is ever written outside the set's folder."""
    with pytest.raises(CaptureError, match=r"file name is .*; allowed: a plain name inside the set"):
        write_set(tmp_path / "set", "test.op", [draft()], pools={name: {"rows": torch.zeros(1)}})
    assert [p.name for p in tmp_path.iterdir()] == [".set.lock"]


def test_what_the_format_forbids_is_refused_on_writing(tmp_path: Path, draft: Draft, pools: Pools) -> None:
    """A real capture without a model, and a non-finite scalar, never reach the disk."""
    one = draft("one")
    for bad in (
        replace(one, kind="real", seed=None),
        replace(one, call=replace(one.call, scalars={"s": float("nan")})),
    ):
        with pytest.raises(CaptureError, match="capture 'one' is "):
            write_set(tmp_path / "set", "test.op", [bad], pools=pools)


def test_a_writers_folder_opens_after_each_call(tmp_path: Path, plain: Draft) -> None:
    """Before the first, after the first and after the second call the folder is a whole set."""
    writer = SetWriter(tmp_path / "live", "test.op", note="live")
    for number, names in enumerate([[], ["a"], ["a", "b"]]):
        captures = CaptureSet.open(tmp_path / "live")
        assert captures.names() == names and captures.verify() == []
        if number < 2:
            assert writer.add(plain("ab"[number])) > 0
    assert writer.bytes_written == sum(f.stat().st_size for f in (tmp_path / "live").glob("*.safetensors"))


def test_a_writer_continues_its_folder_and_refuses_another_op(tmp_path: Path, plain: Draft) -> None:
    """A second run adds to the first; a set of another op is left alone."""
    SetWriter(tmp_path / "live", "test.op", note="first").add(plain("a"))
    again = SetWriter(tmp_path / "live", "test.op", note="second")
    again.add(plain("b"))
    assert CaptureSet.open(tmp_path / "live").names() == ["a", "b"]
    assert CaptureSet.open(tmp_path / "live").manifest.note == "first"
    with pytest.raises(CaptureError, match="name is 'b'; allowed: a name that the set does not hold yet"):
        again.add(plain("b"))
    again.close()
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"op is 'other.op'; allowed: 'test.op', the op of "):
            SetWriter(tmp_path / "live", "other.op")


def test_a_second_writer_of_a_folder_is_refused(tmp_path: Path, plain: Draft) -> None:
    """The first goes on and its set stays whole; once it is closed it adds nothing more, and the second may."""
    first = SetWriter(tmp_path / "live", "test.op")
    with pytest.raises(CaptureError, match=r"directory is '.*live', which process \d+ is recording into; allowed: a "):
        SetWriter(tmp_path / "live", "test.op")
    first.add(plain("a"))
    first.close()
    with pytest.raises(CaptureError, match="writer is closed, or of the process this one was forked from; allowed: "):
        first.add(plain("b"))
    SetWriter(tmp_path / "live", "test.op").add(plain("c"))
    captures = CaptureSet.open(tmp_path / "live")
    assert captures.names() == ["a", "c"] and captures.verify() == []


def test_a_writer_leaves_out_what_passes_the_limit(tmp_path: Path, plain: Draft) -> None:
    """Over the limit nothing is written and 0 is returned."""
    writer = SetWriter(tmp_path / "live", "test.op")
    size = writer.add(plain("a"))
    assert writer.add(plain("b"), max_bytes=2 * size - 1) == 0
    assert writer.add(plain("c"), max_bytes=2 * size) == size
    assert CaptureSet.open(tmp_path / "live").names() == ["a", "c"]


def test_there_is_no_pickle_in_a_set(small_set: Path) -> None:
    """A set holds JSON and safetensors only."""
    assert {path.suffix for path in small_set.iterdir()} == {".json", ".safetensors"}


def test_a_set_that_is_being_recorded_is_not_replaced(tmp_path: Path, plain: Draft) -> None:
    """`write_set` is a writer too: it waits for the folder, and gives it free afterwards."""
    writer = SetWriter(tmp_path / "live", "test.op")
    with pytest.raises(CaptureError, match=r"directory is '.*live', which process \d+ is recording into"):
        write_set(tmp_path / "live", "test.op", [plain("a")], replace=True)
    writer.close()
    for name in ("a", "b"):
        write_set(tmp_path / "live", "test.op", [plain(name)], replace=True)
    assert CaptureSet.open(tmp_path / "live").names() == ["b"]
