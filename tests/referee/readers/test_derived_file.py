"""Derived numbers, computed again: what agrees, what rounding explains, what disagrees."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_lab.errors import RefereeError
from kda_lab.referee.readers.derived_file import Derived, _inputs, read_derived
from kda_lab.referee.readers.quantities import printed

HEAD = "name,statistic,inputs,printed,where\n"


def one(folder: Path, row: str) -> Derived:
    """The derived number of a file with one row."""
    path = folder / "derived.csv"
    path.write_text(HEAD + row + "\n")
    (found,) = read_derived(path)
    return found


@pytest.mark.parametrize(
    ("row", "recomputed", "status"),
    [
        ("a,change,3055.28 3122.06,+2.19%,", 2.18572, "agrees"),
        ("a,change,45.262 44.807,-1.00%,", -1.00526, "rounding"),
        ("a,change,843.14 858.03,+1.7%,", 1.76602, "disagrees"),
        ("a,change,,+1.7%,", None, "no inputs"),
        ("a,change,4606 4755,+3.3%,", 3.23491, "disagrees"),
        ("a,change,4606~ 4755~,+3.3%,", 3.23491, "rounding"),
        ("a,ratio,114.897 25.914,4.43x,", 4.43378, "agrees"),
        ("a,geomean,1.7066*6 2.4414*9,2.1156x,", 2.11563, "agrees"),
        ("a,median,1 9 5,5,", 5.0, "agrees"),
        ("a,minimum,1.41 1.56,1.41x,", 1.41, "agrees"),
        ("a,maximum,1.41 1.56,1.56x,", 1.56, "agrees"),
        ("a,product,32 64,2048,", 2048.0, "agrees"),
        ("a,share,49 50,98%,", 98.0, "agrees"),
        ("a,per_second,24 22.87,1049,", 1049.4097, "agrees"),
        ("a,difference,95.561 95.180,-0.381 pp,", -0.381, "agrees"),
        ("a,difference_of_means,95.814 95.358 95.510 95.282 95.586 94.673,-0.381 pp,", -0.38033, "rounding"),
        ("a,spread,560.23 540.22,3.7%,", 3.70405, "agrees"),
        ("a,spread_within,858.38 858.03 857.76,0.1%,", 0.0722813, "agrees"),
        ("a,spread_within,7933 7956,0.1%,", 0.28993, "disagrees"),
        ("a,change_within,266.218 265.647 678.651 680.757,0.32%,", 0.31032, "agrees"),
        ("a,change_within,266.218 265.647 678.651 680.757,0.30%,", 0.31032, "disagrees"),
    ],
)
def test_a_statistic_is_computed_again(tmp_path: Path, row: str, recomputed: float | None, status: str) -> None:
    """From the inputs as printed; rounding is what the digits that were not printed may have been."""
    found = one(tmp_path, row)
    assert found.recomputed == (None if recomputed is None else pytest.approx(recomputed, rel=1e-5))
    assert found.status == status


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,inputs\na,1\n", r"derived\.csv:1: header is \['name', 'inputs'\]; allowed: name, statistic, inputs"),
        (HEAD + "a,mode,1 2,3,\n", r"derived\.csv:2: statistic is 'mode'; allowed: change, difference"),
        (HEAD + "a,change,1 2,big,\n", r"derived\.csv:2: printed is 'big'; allowed: a number and its unit"),
        (HEAD + "a,change,1,3%,\n", r"inputs is 1 numbers; allowed: two, or pairs"),
        (HEAD + "a,change_within,1 2 3,3%,\n", r"inputs is 3 numbers; allowed: two, or pairs"),
        (
            HEAD + "a,change,0 2,3%,\n",
            r"inputs is '0 2' \(.*division by zero\); allowed: numbers that can be divided by",
        ),
        (HEAD + "a,mean,1 two,3,\n", r"input is 'two'; allowed: a number such as 3055\.28"),
        (HEAD + "a,geomean,-1 2,3,\n", r"inputs is '-1 2' \("),
        (HEAD + f"a,mean,{' '.join(['1*999'] * 2)},3,\n", r"inputs is 1998 numbers; allowed: at most 1000"),
    ],
)
def test_a_wrong_row_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The field and the line are named."""
    path = tmp_path / "derived.csv"
    path.write_text(text)
    with pytest.raises(RefereeError, match=message):
        read_derived(path)


values = st.decimals("0.100", "999.999", places=3)


@given(st.lists(values, min_size=2, max_size=2), st.sampled_from(["change", "ratio", "difference", "share"]))
def test_the_span_holds_the_result_of_any_unrounded_inputs(pair: list, statistic: str) -> None:
    """Whatever the digits were that nobody printed, the result lies in the span, and so does the printed one."""
    inputs = tuple(p for v in pair for p in _inputs(Path("x"), 1, str(v)))
    found = Derived("a", statistic, inputs, printed("1"), "1", "", 1)
    low, high = found.span or (0, 0)
    for share in (-1, -0.3, 0, 0.7, 1):
        moved = tuple(
            type(p)(p.value + share * p.half_step * sign, "", 17) for p, sign in zip(inputs, (1, -1), strict=True)
        )
        value = Derived("a", statistic, moved, printed("1"), "1", "", 1).recomputed
        assert value is not None
        assert low - 1e-9 * abs(low) <= value <= high + 1e-9 * abs(high)


@given(st.lists(values, min_size=3, max_size=12), st.sampled_from(["mean", "median", "geomean", "spread", "maximum"]))
def test_what_is_printed_from_the_inputs_agrees(drawn: list, statistic: str) -> None:
    """A number rounded from the very inputs is never blamed."""
    inputs = tuple(p for v in drawn for p in _inputs(Path("x"), 1, str(v)))
    value = Derived("a", statistic, inputs, printed("1"), "1", "", 1).recomputed
    text = f"{value:.2f}"
    assert Derived("a", statistic, inputs, printed(text), text, "", 1).status == "agrees"
