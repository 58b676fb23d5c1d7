"""Deterministic comparison: token ids and log-probabilities of two arms, after a baseline-against-baseline control.

Equality of two arms says something only where the baseline equals itself. So the control is judged first; where it
diverges the oracle is invalid, whatever the candidate did. One verdict a mode: what holds in deterministic mode holds
there alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kda_lab.errors import Reason, RefereeError
from kda_lab.referee.claim import Equality
from kda_lab.referee.token_records import TokenRecord

ROOM = "referee"
SHOWN = 5
"""How many prompt ids a sentence lists before it only counts."""


@dataclass(frozen=True)
class Divergence:
    """The first place where two outputs part."""

    prompt: str
    token: int
    """Position in the output, from 0."""
    first_id: int | None
    """The id in the reference; None where its output had ended."""
    second_id: int | None
    gap: float | None
    """Absolute difference of the two log-probabilities; None where one is missing."""

    def __str__(self) -> str:
        ids = f"ids {_id(self.first_id)}, {_id(self.second_id)}"
        gap = "logprob gap unknown" if self.gap is None else f"logprob gap {self.gap:.3g}"
        return f"prompt {self.prompt} token {self.token} ({ids}; {gap})"


@dataclass(frozen=True)
class Comparison:
    """What two sets of outputs have in common."""

    prompts: int
    identical_prompts: int
    tokens: int
    """Tokens of the reference."""
    identical_tokens: int
    """Positions at which id and log-probability, as they were written down, are the same."""
    largest_gap: float
    """Largest difference of log-probabilities over positions with both, 0.0 where none was given."""
    first: Divergence | None
    logprobs: bool
    """Whether every prompt has log-probabilities on both sides."""
    prompts_with_logprobs: int = 0

    @property
    def identical(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        same = f"{self.identical_prompts} of {self.prompts} prompts and {self.identical_tokens} of {self.tokens} tokens"
        if not self.prompts_with_logprobs:
            return f"{same} identical (ids only, no logprobs given)"
        some = "" if self.logprobs else f" of {self.prompts_with_logprobs} of {self.prompts} prompts"
        return f"{same} identical (ids and logprobs{some}), largest logprob gap {self.largest_gap:.3g}"


@dataclass(frozen=True)
class TokenVerdict:
    """The verdict for one mode."""

    mode: str
    word: str
    """`identical`, `differs`, `not comparable` or `invalid`."""
    reason: str
    control: Comparison | None = None
    """The baseline against itself; of several rounds the first that diverges, else the first."""
    candidate: Comparison | None = None

    def __str__(self) -> str:
        return f"{self.word}: {self.reason} This holds for mode {self.mode!r} alone."


Outputs = dict[str, TokenRecord]
"""Prompt to output, of one arm in one round and mode."""


def compare_tokens(
    records: Sequence[TokenRecord], baseline: str, candidate: str, control: str = ""
) -> list[TokenVerdict]:
    """One verdict a mode, sorted by mode.

    Args:
        records: outputs of both arms and of the control.
        baseline, candidate: names of arms.
        control: name of the arm that is the baseline again; when empty, the baseline's further rounds are the control.
    Raises:
        RefereeError: an arm has no record, or arms are not told apart.
    """
    names = sorted({r.arm for r in records})
    asked = {"baseline": baseline, "candidate": candidate} | ({"control": control} if control else {})
    unknown = [Reason(k, repr(v), f"an arm of the records: {', '.join(names) or 'none'}") for k, v in asked.items()]
    unknown = [reason for reason, name in zip(unknown, asked.values(), strict=True) if name not in names]
    if unknown:
        raise RefereeError(ROOM, unknown)
    if len(set(asked.values())) < len(asked):
        raise RefereeError(ROOM, [Reason("arms", repr(list(asked.values())), "a name of its own for each")])
    return [
        _judge_mode(mode, [r for r in records if r.mode == mode], asked) for mode in sorted({r.mode for r in records})
    ]


def equality_of(verdict: TokenVerdict, baseline: str, candidate: str) -> tuple[Equality, ...]:
    """The comparisons of a verdict as facts of a claim, the control first; none where nothing was compared."""
    pairs = ((baseline, verdict.control), (candidate, verdict.candidate))
    return tuple(
        Equality(
            left=baseline,
            right=right,
            mode=verdict.mode,
            what="token ids and logprobs" if made.logprobs else "token ids",
            compared=made.tokens or None,
            equal=made.identical_tokens,
            identical=made.identical,
            maximum_difference=made.largest_gap if made.logprobs else None,
            first_difference="" if made.first is None else str(made.first),
        )
        for right, made in pairs
        if made is not None
    )


def compare_outputs(reference: Outputs, other: Outputs) -> Comparison:
    """Compare two outputs of the same prompts, value by value without tolerance; prompts in natural order."""
    first: Divergence | None = None
    same_prompts = same_tokens = 0
    largest = 0.0
    for prompt in sorted(reference, key=_natural):
        a, b = reference[prompt], other[prompt]
        parted: Divergence | None = None
        for token in range(max(len(a.token_ids), len(b.token_ids))):
            at = _position(prompt, token, a, b)
            largest = max(largest, at.gap or 0.0)
            if at.first_id == at.second_id and not at.gap:
                same_tokens += 1
            else:
                parted = parted or at
        same_prompts += parted is None
        first = first or parted
    tokens = sum(len(r.token_ids) for r in reference.values())
    given = sum(r.logprobs is not None and other[prompt].logprobs is not None for prompt, r in reference.items())
    every = given == len(reference)
    return Comparison(len(reference), same_prompts, tokens, same_tokens, largest, first, every, given)


def _judge_mode(mode: str, records: list[TokenRecord], asked: dict[str, str]) -> TokenVerdict:
    rounds = _rounds(records)
    bases = sorted(key for key in rounds if key[0] == asked["baseline"])
    candidates = sorted(key for key in rounds if key[0] == asked["candidate"])
    controls = sorted(key for key in rounds if key[0] == asked.get("control")) + bases[1:]
    if not bases or not candidates:
        missing = asked["candidate" if bases else "baseline"]
        return TokenVerdict(mode, "not comparable", f"arm {missing!r} has no record in this mode.")
    reference = rounds[bases[0]]
    spoiled = _not_finite(records)
    if spoiled:
        return TokenVerdict(mode, "invalid", spoiled)
    if not any(record.token_ids for record in reference.values()):
        return TokenVerdict(mode, "invalid", "invalid oracle: no output of the baseline has a token.")
    if not controls:
        words = "invalid oracle: no baseline-against-baseline control; run the baseline twice."
        return TokenVerdict(mode, "invalid", words)
    for key in (*controls, *candidates):
        unlike = _unlike(reference, rounds[key])
        if unlike:
            word = "invalid" if key in controls else "not comparable"
            lead = "invalid oracle: the control cannot be compared: " if key in controls else ""
            return TokenVerdict(mode, word, f"{lead}{key[0]} round {key[1]}: {unlike}")
    return _verdict(mode, reference, {k: rounds[k] for k in controls}, {k: rounds[k] for k in candidates})


Rounds = dict[tuple[str, int], Outputs]


def _verdict(mode: str, reference: Outputs, controls: Rounds, candidates: Rounds) -> TokenVerdict:
    control_key, control = _worst(reference, controls)
    key, candidate = _worst(reference, candidates)
    if not control.identical:
        words = (
            f"invalid oracle: the baseline differs from itself ({control_key[0]} round {control_key[1]}) at "
            f"{control.first}; {control}. Deterministic mode is needed, or another oracle than equality."
        )
        return TokenVerdict(mode, "invalid", words, control, candidate)
    if not candidate.identical:
        words = f"{key[0]} round {key[1]} differs at {candidate.first}; {candidate}."
        return TokenVerdict(mode, "differs", words, control, candidate)
    words = f"{candidate}, over {len(candidates)} round(s); control: {len(controls)} round(s), identical."
    return TokenVerdict(mode, "identical", words, control, candidate)


def _worst(reference: Outputs, rounds: Rounds) -> tuple[tuple[str, int], Comparison]:
    """The first round that diverges, else the first."""
    compared = [(key, compare_outputs(reference, outputs)) for key, outputs in rounds.items()]
    return next((pair for pair in compared if not pair[1].identical), compared[0])


def _rounds(records: Iterable[TokenRecord]) -> Rounds:
    found: Rounds = {}
    for record in records:
        outputs = found.setdefault((record.arm, record.round), {})
        if record.prompt in outputs:
            given = f"prompt {record.prompt!r} twice in arm {record.arm!r} round {record.round}"
            raise RefereeError(ROOM, [Reason("records", given, "each prompt once an arm, round and mode")])
        outputs[record.prompt] = record
    return found


def _unlike(reference: Outputs, other: Outputs) -> str:
    """Why two outputs answer different questions; empty when they answer the same."""
    missing = sorted(set(reference) - set(other), key=_natural)
    extra = sorted(set(other) - set(reference), key=_natural)
    if missing or extra:
        return f"other prompts than the baseline: {_listed(missing)} missing, {_listed(extra)} added."
    for prompt in sorted(reference, key=_natural):
        a, b = reference[prompt], other[prompt]
        if a.prompt_sha256 and b.prompt_sha256 and a.prompt_sha256 != b.prompt_sha256:
            return f"prompt {prompt} has another text: prompt_sha256 {a.prompt_sha256!r}, {b.prompt_sha256!r}."
        if (a.logprobs is None) != (b.logprobs is None):
            return f"prompt {prompt} has logprobs on one side only."
    return ""


def _not_finite(records: Iterable[TokenRecord]) -> str:
    for record in sorted(records, key=lambda r: (r.arm, r.round, _natural(r.prompt))):
        for token, value in enumerate(record.logprobs or ()):
            if value is None or not math.isfinite(value):
                where = f"arm {record.arm!r} round {record.round} prompt {record.prompt} token {token}"
                return f"the logprob is {value} at {where}: a server that computes NaN proves nothing equal."
    return ""


def _position(prompt: str, token: int, a: TokenRecord, b: TokenRecord) -> Divergence:
    values = [r.logprobs[token] if r.logprobs and token < len(r.logprobs) else None for r in (a, b)]
    gap = None if values[0] is None or values[1] is None else abs(values[0] - values[1])
    ids = [r.token_ids[token] if token < len(r.token_ids) else None for r in (a, b)]
    return Divergence(prompt, token, ids[0], ids[1], gap)


def _natural(prompt: str) -> tuple[int, int, str]:
    return (0, int(prompt), prompt) if prompt.isdecimal() else (1, 0, prompt)


def _id(value: int | None) -> str:
    return "end of output" if value is None else str(value)


def _listed(prompts: Sequence[str]) -> str:
    if not prompts:
        return "none"
    more = f" and {len(prompts) - SHOWN} more" if len(prompts) > SHOWN else ""
    return ", ".join(prompts[:SHOWN]) + more
