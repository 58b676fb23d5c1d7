"""The blocker that stands for a machine without kda_lab."""

import pytest

from kda_lab.export.alone_worker import NoLaboratory


def test_blocks_kda_lab_and_nothing_else() -> None:
    """kda_lab and everything in it is not found; a name that only begins alike is left to other finders."""
    finder = NoLaboratory()
    for name in ("kda_lab", "kda_lab.runtime"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
            finder.find_spec(name)
    assert finder.find_spec("kda_labels") is None
    assert finder.find_spec("torch") is None
