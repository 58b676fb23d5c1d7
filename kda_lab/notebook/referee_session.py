"""The claim referee as a notebook runs it: threads of claims, their verdicts, the arithmetic behind them, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pandas.io.formats.style import Styler

from kda_lab import runtime
from kda_lab.errors import ParameterError, Reason
from kda_lab.notebook import display
from kda_lab.notebook.session import Session
from kda_lab.referee.arms import runs_of
from kda_lab.referee.checks.occupancy import occupancy_of
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.judge import Judgement, judge
from kda_lab.referee.statistics import mde_percent, power
from kda_lab.referee.threads import FOLDER, Thread, read_threads
from kda_lab.report import style
from kda_lab.report.occupancy_figure import OccupiedArm, occupancy
from kda_lab.report.power_figure import PowerCurve
from kda_lab.report.power_figure import power as power_picture
from kda_lab.report.published_figure import PublishedNumber, published
from kda_lab.report.style import Picture
from kda_lab.run_folder import write_json_lines
from kda_lab.verify.verdict import Verdict

FILE = "judgements.jsonl"
EFFECTS = 9
"""Points of a power curve."""


@dataclass
class RefereeSession:
    """One run of the referee over threads. Every method is one step and returns what the notebook shows."""

    session: Session
    threads: list[Thread]

    @classmethod
    def open(cls, session: Session, names: Sequence[str]) -> RefereeSession:
        """Read the claims and the derived numbers of some threads.

        Raises:
            RefereeError: no such thread, or a file of it is not as its reader wants it.
        """
        return cls(session, read_threads(runtime.project_path(FOLDER), names))

    @cached_property
    def judgements(self) -> dict[str, Judgement]:
        """Every claim judged, by name; written to judgements.jsonl on first use."""
        found = {c.name: judge(c) for t in self.threads for c in t.claims}
        write_json_lines(self.session.run.path / FILE, (j.model_dump(mode="json") for j in found.values()))
        return found

    def tables(self) -> Styler:
        """What each thread brought: claims, runs, scores and derived numbers."""
        lines = []
        for thread in self.threads:
            runs, scores = (sum(len(getattr(c, part)) for c in thread.claims) for part in ("runs", "scores"))
            lines.append((thread.title, len(thread.claims), runs, scores, len(thread.derived)))
        return display.shown(("thread", "claims", "runs", "scores", "derived numbers"), lines)

    def verdicts(self) -> Styler:
        """One line a claim: its question in words, the verdict, and the first reason."""
        lines = []
        for thread in self.threads:
            for claim in thread.claims:
                found = self.judgements[claim.name]
                reason = found.reasons[0] if found.reasons else ""
                lines.append((claim.thread or thread.title, claim.name, str(found), reason))
        return display.shown(("thread", "claim", "verdict", "because"), lines)

    def arithmetic(self, name: str, *checks: str) -> Styler:
        """The lines that a person can redo by hand, of all checks or of some.

        Raises:
            ParameterError: no such claim, or a check that found nothing in it.
        """
        found = self._judgement(name).findings
        made = sorted({f.check for f in found})
        for check in checks:
            if check not in made:
                raise ParameterError("notebook", [Reason("check", repr(check), ", ".join(made))])
        lines = [(f.check, f.severity, line) for f in found if not checks or f.check in checks for line in f.arithmetic]
        return display.shown(("check", "says", "arithmetic"), lines, f"{name}: {self._judgement(name)}")

    def occupancy_figure(self, name: str) -> Picture:
        """Throughput against requests in flight, of a claim whose runs tell both.

        Raises:
            ParameterError: no such claim, or the occupancy of an arm is unknown.
        """
        claim = self._claim(name)
        base = _occupied(claim, runs_of(claim, (claim.baseline,), claim.metric, None))
        runs = runs_of(claim, (claim.candidate,), claim.metric, None)
        picture = occupancy(base, [_occupied(claim, [run]) for run in runs], foot=_foot(claim))
        return self._saved(picture, "occupancy")

    def power_figure(self, name: str, runs: Sequence[int]) -> Picture:
        """The relabellings of a claim's runs, and the power of other numbers of runs at the same noise.

        Raises:
            ParameterError: no such claim, or its runs show no noise.
        """
        claim = self._claim(name)
        noise = self._judgement(name).numbers.get("noise_percent")
        if not noise:
            raise ParameterError("notebook", [Reason("claim", repr(name), "a claim with several runs an arm")])
        sides = [
            [r.metrics[claim.metric] for r in runs_of(claim, (arm,), claim.metric, None)]
            for arm in (claim.baseline, claim.candidate)
        ]
        curves = [_curve(count, noise) for count in runs]
        return self._saved(power_picture(sides[0], sides[1], curves, noise, foot=_foot(claim)), "power")

    def published_figure(self) -> Picture:
        """All derived numbers that can be computed again, against what was printed."""
        numbers = [n for t in self.threads for n in _numbers(t)]
        foot = (
            "Inputs and derived numbers as printed in the threads; bounds (at most …) are drawn where they are broken."
        )
        return self._saved(published(numbers, foot=foot), "published")

    def disagreements(self) -> Styler:
        """Each derived number whose printed digits do not follow from the printed inputs."""
        lines = []
        for thread in self.threads:
            for status in ("disagrees", "rounding"):
                lines += [
                    (thread.title, d.name, d.statistic, d.text, f"{d.recomputed:.6g}", d.status, d.where)
                    for d in thread.of(status)
                ]
        heads = ("thread", "number", "statistic", "printed", "recomputed", "status", "where")
        return display.shown(heads, lines)

    def verdict(self, expected: Mapping[str, str]) -> Verdict:
        """Pass when each named claim has the verdict that its numbers carry; written, not raised.

        Args:
            expected: claim to the start of its verdict as printed: `invalid(cold JIT`.
        """
        failures = []
        for name, wanted in expected.items():
            found = str(self.judgements[name]) if name in self.judgements else "not read"
            if not found.startswith(wanted):
                failures.append(f"{name}: verdict is {found!r}; allowed: {wanted!r} and what follows")
        reached = sum(j.reached for j in self.judgements.values())
        finding = f"{len(self.judgements)} claims judged, {reached} of them decided by their own numbers"
        counts = {
            "claims": len(self.judgements),
            "expected": len(expected),
            "as_expected": len(expected) - len(failures),
        }
        verdict = Verdict.of(finding, counts, failures)
        verdict.write(self.session.run)
        return verdict

    def _claim(self, name: str) -> Claim:
        found = {c.name: c for t in self.threads for c in t.claims}
        if name not in found:
            raise ParameterError("notebook", [Reason("claim", repr(name), ", ".join(found))])
        return found[name]

    def _judgement(self, name: str) -> Judgement:
        return self.judgements[self._claim(name).name]

    def _saved(self, picture: Picture, name: str) -> Picture:
        style.save(picture, self.session.run.path, name)
        return picture


def _occupied(claim: Claim, runs: list[Run]) -> OccupiedArm:
    found = occupancy_of(runs[0].arm, runs) if runs else None
    if found is None:
        allowed = "runs with a rate, and a latency or TTFT and TPOT, in both arms"
        raise ParameterError("notebook", [Reason("claim", repr(claim.name), allowed)])
    rates = [r.metrics["throughput_tok_s"] for r in runs]
    return OccupiedArm(found.arm, found.in_flight, sum(rates) / len(rates))


def _curve(runs: int, noise_percent: float) -> PowerCurve:
    strata = ((runs, runs),)
    effects = [3.0 * noise_percent * n / (EFFECTS - 1) for n in range(EFFECTS)]
    found = [power(strata, effect, noise_percent) for effect in effects]
    return PowerCurve(runs, effects, found, mde_percent(strata, noise_percent))


def _numbers(thread: Thread) -> list[PublishedNumber]:
    made = []
    for d in thread.derived:
        bound = d.statistic.endswith("within") and d.status == "agrees"
        if d.recomputed is None or d.status == "no inputs" or bound:
            continue
        off = (d.recomputed - d.printed.value) * 10**d.printed.digits
        made.append(PublishedNumber(thread.title, d.name, d.text, d.recomputed, off, d.status))
    return made


def _foot(claim: Claim) -> str:
    hardware = ", ".join(dict.fromkeys(r.hardware for r in claim.runs if r.hardware))
    return f"{claim.thread}: {claim.title}" + (f"; {hardware}." if hardware else ".")
