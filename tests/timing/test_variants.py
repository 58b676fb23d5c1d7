"""The tool that times variants of a candidate: what it replaces, what it writes, and how it refuses."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from kda_lab.dispatch.loader import load_source
from kda_lab.ops.arms import candidate_arm

FILE = Path(__file__).parents[2] / "benchmarks" / "variants.py"
SOURCE = '''TABLE = (
    (1, "é"),  # a comment that goes with its value
    (2, "b"),
)
"""What it holds."""
WIDTH = 64  # kept
WIDTH_TOO: int = 3
'''


@pytest.fixture(scope="module")
def variants() -> ModuleType:
    return load_source(FILE)


def test_values_of_any_length_are_replaced_where_they_stand(variants: ModuleType) -> None:
    """Several at once, over several lines, with what stands behind them."""
    found = variants.changed_source(SOURCE, {"TABLE": "((3, 'c'),)", "WIDTH": "min(1, 2)"})
    rest = SOURCE[SOURCE.index('"""What') :].replace("WIDTH = 64", "WIDTH = min(1, 2)")
    assert found == "TABLE = ((3, 'c'),)\n" + rest
    assert variants.changed_source(SOURCE, {}) == SOURCE


def test_unknown_and_doubled_names_are_refused_with_the_known_ones(variants: ModuleType) -> None:
    """A name must be assigned exactly once at the top level."""
    with pytest.raises(ValueError, match=r"tunables are \['HEIGHT'\]; allowed: TABLE, WIDTH$"):
        variants.changed_source(SOURCE, {"HEIGHT": "1"})
    with pytest.raises(ValueError, match="tunable is 'WIDTH'; allowed: a name that the file assigns once"):
        variants.changed_source(SOURCE + "WIDTH = 2\n", {"WIDTH": "1"})


@pytest.mark.parametrize(
    "text", ["name", "name:", "name:A", "two words:A=1", "name:A=1,", ":A=1", "name:A=1 +", "n:**a"]
)
def test_a_variant_is_a_name_and_tunables(variants: ModuleType, text: str) -> None:
    """Anything else is refused with the form that is wanted; a trailing comma is Python's own."""
    if text == "name:A=1,":
        assert variants.Variant.parsed(text) == variants.Variant("name", {"A": "1"})
        return
    with pytest.raises(ValueError, match=r"variant is .*; allowed: "):
        variants.Variant.parsed(text)


def test_a_variant_of_a_candidate_is_a_candidate(variants: ModuleType, tmp_path: Path) -> None:
    """Triton and CUDA C++, whose device code goes along."""
    chosen = [variants.Variant.parsed("few:BLOCK_V=32,NUM_WARPS=2")]
    paths = variants.write_variants("kda.verify_ring", "streamed", chosen, tmp_path)
    assert [candidate_arm(path).module.BLOCK_V for path in paths] == [64, 32]
    assert len({candidate_arm(path).source_sha256 for path in paths}) == 2
    (tmp_path / "cuda").mkdir()
    (path,) = variants.write_variants("kda.verify_ring", "staged", [], tmp_path / "cuda")
    assert candidate_arm(path).declaration.language == "cuda"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--row", "nope"], "rows are ['nope']; allowed: hv12-B1-T4"),
        (["--row", "hv12-B1-T4", "--variant", "x:NOPE=1"], "tunables are ['NOPE']; allowed: "),
        (["--row", "hv12-B1-T4"], "not timed"),
    ],
    ids=["row", "tunable", "no-gpu"],
)
def test_a_request_that_cannot_be_met_is_one_line(
    variants: ModuleType,
    given: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 2, the reason on stderr, nothing timed."""
    monkeypatch.setattr(variants.torch.cuda, "is_available", lambda: False)
    assert variants.main(["kda.verify_ring", "streamed", *given]) == 2
    assert words in capsys.readouterr().err
