"""The printed explanation: the outcome first, then every kernel with its answer and reasons."""

from __future__ import annotations

from kda_lab.dispatch.explanation import Explanation
from kda_lab.dispatch.fallback import FallbackVerdict
from kda_lab.dispatch.selection import Choice, KernelVerdict
from kda_lab.errors import Reason

ACCEPTS = KernelVerdict("alpha", 3, "dispatched", ())
REJECTS = KernelVerdict(
    "beta", 1, "dispatched", (Reason("factor", "2", "an int >= 5"), Reason("x.dtype", "a", "b", "Cast x."))
)


def test_accepted_and_rejected_kernels_are_listed_with_reasons() -> None:
    """Each kernel stands with version, shapes and answer, and each reason on a line of its own."""
    text = str(Explanation(Choice("toy.scale", (ACCEPTS, REJECTS)), "kernel alpha"))
    assert text.splitlines() == [
        "toy.scale: kernel alpha",
        "  alpha version 3 accepts (dispatched shapes)",
        "  beta version 1 rejects (dispatched shapes)",
        "    factor is 2; allowed: an int >= 5.",
        "    x.dtype is a; allowed: b. Cast x.",
    ]


def test_general_reasons_come_before_the_kernels() -> None:
    """What holds for every kernel is printed once, above them."""
    choice = Choice("toy.scale", (ACCEPTS,), general=(Reason("KDA_LAB_DISPATCH", "'off'", "'on' or unset"),))
    lines = str(Explanation(choice, "raises")).splitlines()
    assert lines[1] == "  every kernel: KDA_LAB_DISPATCH is 'off'; allowed: 'on' or unset."


def test_two_claims_are_explained() -> None:
    """When two kernels accept, the table ends with the conflict and how to resolve it."""
    other = KernelVerdict("gamma", 1, "dispatched", ())
    lines = str(Explanation(Choice("toy.scale", (ACCEPTS, other)), "raises")).splitlines()
    assert lines[-1].startswith("  kernels is claimed by 'alpha' and 'gamma'; allowed: one kernel a call.")


def test_forced_kernel_is_marked() -> None:
    """The headline says when the choice was forced."""
    explanation = Explanation(Choice("toy.scale", (ACCEPTS,), forced="alpha"), "kernel alpha")
    assert str(explanation).splitlines()[0] == "toy.scale: kernel alpha (forced: alpha)"
    assert explanation.kernel == "alpha"


def test_the_chain_is_listed_in_order() -> None:
    """Each fallback that was asked stands with its answer and reasons; those behind are named as not asked."""
    chain = (
        FallbackVerdict("library", "function", (Reason("device.capability", "9.0", "exactly 12.0"),)),
        FallbackVerdict("missing", "absent", (Reason("missing", "absent", "an exported kernel"),)),
        FallbackVerdict("portable", "kernel", ()),
    )
    text = str(Explanation(Choice("toy.scale", (REJECTS,), chain=chain), "fallback portable", ("last",)))
    assert text.splitlines()[4:] == [
        "  fallback library rejects",
        "    device.capability is 9.0; allowed: exactly 12.0.",
        "  fallback missing rejects",
        "    missing is absent; allowed: an exported kernel.",
        "  fallback portable accepts (callable shapes)",
        "  fallback last: not asked",
    ]
