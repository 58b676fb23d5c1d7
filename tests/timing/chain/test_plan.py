"""A chain's plan names its products and refuses what cannot be a chain."""

from __future__ import annotations

from typing import Any

import pytest

from kda_lab.errors import ParameterError
from kda_lab.timing.chain.plan import MODELS, plan_chain


def test_a_plan_holds_the_products_of_one_layer(chain_op: Any) -> None:
    """The rows are the model's shapes in order, at the given batch, and the state is in bytes."""
    plan = plan_chain(chain_op, "tiny", batch=4, layers=2, state_mb=1.5)
    assert [row.label for row in plan.rows] == ["tiny_a-M4-random", "tiny_c-M4-random"]
    assert (plan.layers, plan.state_bytes, plan.touches_per_layer) == (2, 1_500_000, 2)
    assert plan.axes == {"model": "tiny", "M": 4, "rows": ["tiny_a-M4-random", "tiny_c-M4-random"]}


def test_no_state_means_no_touches(chain_op: Any) -> None:
    """A state of 0 MB leaves the touches out."""
    assert plan_chain(chain_op, "tiny", batch=1, layers=2, state_mb=0).touches_per_layer == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "70b"}, f"model is '70b'; allowed: {', '.join(MODELS)}"),
        ({"batch": 0}, "batch is 0; allowed: at least 1"),
        ({"layers": 1}, "layers is 1; allowed: at least 2. The first and the last layer are judged."),
        ({"state_mb": -1.0}, "state_mb is -1.0; allowed: 0 or more megabytes"),
        ({"state_mb": float("nan")}, "state_mb is nan; allowed: 0 or more megabytes"),
        ({"state_mb": float("inf")}, "state_mb is inf; allowed: 0 or more megabytes"),
    ],
    ids=["model", "batch", "layers", "negative", "nan", "infinite"],
)
def test_what_is_no_chain_is_refused(chain_op: Any, change: dict[str, Any], words: str) -> None:
    """Each wrong value is named with what is allowed."""
    given = {"model": "tiny", "batch": 1, "layers": 2, "state_mb": 1.0, **change}
    with pytest.raises(ParameterError, match=words.replace(".", r"\.")):
        plan_chain(chain_op, given.pop("model"), **given)
