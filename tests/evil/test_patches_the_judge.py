"""Evil arm: replaces the function that measures its error by one that likes its constant output."""

from __future__ import annotations

import pytest
import torch
from toy_op import BoundArm, judge, write

from kda_lab.errors import VerificationError
from kda_lab.verify import metrics, reference


@pytest.mark.parametrize(
    ("owner", "name"),
    [(metrics, "rel_l2"), (reference, "worst_rel_l2"), (torch, "isfinite"), (torch.Tensor, "double")],
    ids=["metric", "reference", "torch", "tensor"],
)
def test_a_patched_judge_judges_nothing(owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stops and names the function, instead of passing or failing for the wrong reason."""
    real = getattr(owner, name)

    def bind(call):
        def launch() -> None:
            monkeypatch.setattr(owner, name, lambda *a, **k: real(*a, **k))
            write(call)

        return launch

    with pytest.raises(VerificationError, match=rf"changed before arm patching was judged: [\w., ]*{name}"):
        judge(BoundArm("patching", bind))


def test_changed_code_of_the_same_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function object may stay while its code is another."""

    def bind(call):
        def launch() -> None:
            monkeypatch.setattr(metrics.rel_l2, "__code__", (lambda value, reference: 0.0).__code__)
            write(call)

        return launch

    with pytest.raises(VerificationError, match=r"kda_lab\.verify\.metrics\.rel_l2"):
        judge(BoundArm("patching", bind))
