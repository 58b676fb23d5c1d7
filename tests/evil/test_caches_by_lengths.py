"""Evil arm: remembers its answer by addresses and live lengths, which new lengths alone would not show."""

from __future__ import annotations

from toy_op import BoundArm, failed, judge, rounded, without


def caching() -> BoundArm:
    answers: dict[tuple, dict] = {}

    def bind(call):
        def launch() -> None:
            key = (call.inputs["x"].data_ptr(), tuple(call.inputs["cu"].tolist()))
            if key not in answers:
                answers[key] = {name: value.clone() for name, value in rounded(call).items()}
            for name, value in answers[key].items():
                call.outputs[name].copy_(value)

        return launch

    return BoundArm("caching_lengths", bind)


def test_caught_by_other_values_at_the_same_lengths() -> None:
    """The decoy has the same lengths at the same addresses, so its answer comes back for the real contents."""
    assert failed(caching()) == {"changed_lengths_shorter"}


def test_only_the_decoy_sees_it() -> None:
    """Without that check the arm would pass."""
    assert judge(caching(), without("changed_lengths_shorter")).passed
