"""What an arm raised, in words; order, spare trials and refusals are tested where rows and chains are timed."""

from __future__ import annotations

from kda_lab.timing.trials import in_words


def test_errors_in_words() -> None:
    """Class and text on one line, cut where it is long."""
    assert in_words(ValueError("two\n  lines")) == "ValueError: two lines"
    assert in_words(KeyboardInterrupt()) == "KeyboardInterrupt"  # type: ignore[arg-type]
    assert len(in_words(ValueError("x" * 5000))) == len("ValueError: ") + 600
