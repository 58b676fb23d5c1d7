"""Throughput rebuilt from its parts (REF-5): requests in flight * tokens / (TTFT + (tokens - 1) * TPOT).

At one request in flight the parts must give the whole. What they leave over is shown, and how much of the change
between the arms each part carries.
"""

from __future__ import annotations

from kda_lab.referee.arms import sides, typical
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.finding import Finding, figure, signed

CHECK = "rebuilt throughput"
ALLOWED_PERCENT = 1.0


def predicted_tok_s(tokens: int, ttft_ms: float, tpot_ms: float, concurrency: int = 1) -> float:
    """Output tokens a second of a closed loop that always holds `concurrency` requests."""
    return concurrency * tokens / ((ttft_ms + (tokens - 1) * tpot_ms) / 1e3)


def check(claim: Claim) -> tuple[Finding, ...]:
    """Rebuild both arms' throughput at concurrency 1 and split the change into first token and later tokens."""
    if claim.question != "speed":
        return ()
    base, cand = (_parts(runs) for runs in sides(claim))
    if base is None or cand is None or base[0] != cand[0]:
        return ()
    tokens = base[0]
    lines, residuals = [], []
    for name, (_, ttft, tpot, seen) in ((claim.baseline, base), (claim.candidate, cand)):
        made = predicted_tok_s(tokens, ttft, tpot)
        residuals.append(100 * (seen / made - 1))
        lines.append(
            f"{name}: {tokens} / ({figure(ttft)} ms + {tokens - 1} * {figure(tpot)} ms) = {made:.2f} tok/s, "
            f"measured {figure(seen)}, residual {signed(residuals[-1])}"
        )
    first = cand[1] - base[1]
    later = (tokens - 1) * (cand[2] - base[2])
    lines.append(
        f"change a request: TTFT {first:+.2f} ms, later tokens {tokens - 1} * {cand[2] - base[2]:+.4f} ms = {later:+.2f} ms"
    )
    agree = max(abs(r) for r in residuals) <= ALLOWED_PERCENT
    part = "the first token" if abs(first) >= abs(later) else "the later tokens"
    sentence = f"The parts give the whole within {max(abs(r) for r in residuals):.2f} %; the change lies in {part}."
    if not agree:
        sentence = (
            f"The parts miss the measured throughput by {signed(max(residuals, key=abs))}: something outside TTFT and "
            "TPOT takes time, or the numbers are of different runs."
        )
    return (
        Finding(
            check=CHECK,
            severity="passed" if agree else "warning",
            short="throughput not explained by its parts",
            sentence=sentence,
            arithmetic=tuple(lines),
            numbers={
                "baseline_residual_percent": residuals[0],
                "candidate_residual_percent": residuals[1],
                "ttft_change_ms": first,
                "later_tokens_change_ms": later,
            },
        ),
    )


def _parts(runs: list[Run]) -> tuple[int, float, float, float] | None:
    """Tokens, TTFT, TPOT and throughput of an arm at concurrency 1; None where one is unknown."""
    alone = [r for r in runs if r.concurrency == 1]
    tokens = {r.output_tokens for r in alone}
    ttft, tpot, seen = (typical(alone, m) for m in ("ttft_mean_ms", "tpot_mean_ms", "throughput_tok_s"))
    only = tokens.pop() if len(tokens) == 1 else None
    return None if not only or ttft is None or tpot is None or seen is None else (only, ttft, tpot, seen)
