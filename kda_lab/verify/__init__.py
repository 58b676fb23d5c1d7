"""Verification: replay captures through arms, judge them by removable checks, prove the gates' power."""

from kda_lab.verify.checks import CHECKS, Check, CheckResult, checks_of
from kda_lab.verify.observation import Settings
from kda_lab.verify.power import MutantOutcome, Power, gate_power
from kda_lab.verify.reference import Reference, make_reference
from kda_lab.verify.replay import Replay, replay
from kda_lab.verify.stress import Stress, stress
from kda_lab.verify.verdict import Verdict, judge

__all__ = [
    "CHECKS",
    "Check",
    "CheckResult",
    "MutantOutcome",
    "Power",
    "Reference",
    "Replay",
    "Settings",
    "Stress",
    "Verdict",
    "checks_of",
    "gate_power",
    "judge",
    "make_reference",
    "replay",
    "stress",
]
