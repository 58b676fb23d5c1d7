"""Claims as YAML: what a person types by hand, and what `write_claims` writes.

```yaml
thread: sglang PR 36206
defaults:                    # of every run of the file; a run's own values come first
  hardware: GB300
claims:
  - name: throughput
    metric: throughput_tok_s
    baseline: unfused
    candidate: fused
    runs:
      - {arm: unfused, round: 1, throughput_tok_s: 3038.33, e2e_mean_s: 161.229}
    published:
      - {statistic: change, metric: throughput_tok_s, printed: "+2.19%"}
```

Every key of a claim is a field of `kda_lab.referee.claim.Claim`, with three conveniences: in a run, a key with a unit
is a metric (`e2e_mean_s` is converted); `printed` of a published number holds its value, unit and digits; a `source`
may be a note in one sentence, and file and line are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from kda_lab.errors import RefereeError
from kda_lab.referee.claim import Claim, Run
from kda_lab.referee.readers.quantities import metrics_of, printed_at
from kda_lab.referee.readers.text import complaint, refuse, short_name
from kda_lab.referee.readers.yaml_tree import Place, Tree, read_tree
from kda_lab.run_folder import write_atomic

_PARTS = ("runs", "published", "scores", "equality", "levels", "coverage", "gates")
_TOP = ("thread", "defaults", "claims")


def read_claims(path: Path) -> list[Claim]:
    """The claims of a YAML file, in its order.

    Raises:
        RefereeError: as `read_tree`, or a field is not as `Claim` wants it; file and line are named.
    """
    tree = read_tree(path)
    top = _mapping(tree, tree.value, ())
    for name in top:
        if name not in _TOP:
            refuse(path, tree.line((name,)), "key", repr(name), ", ".join(_TOP))
    defaults = _mapping(tree, top.get("defaults") or {}, ("defaults",))
    listed = _list(tree, top.get("claims"), ("claims",))
    if not listed:
        refuse(path, tree.line(("claims",)), "claims", "none", "at least one claim")
    claims = [_claim(tree, index, item, top.get("thread"), defaults) for index, item in enumerate(listed)]
    _names_once(tree, claims)
    return claims


def _names_once(tree: Tree, claims: Sequence[Claim]) -> None:
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        if claim.name in seen:
            refuse(tree.path, tree.line(("claims", index, "name")), "name", repr(claim.name), "each name once")
        seen.add(claim.name)


def _claim(tree: Tree, index: int, item: Any, thread: Any, defaults: dict[str, Any]) -> Claim:
    place: Place = ("claims", index)
    fields = dict(_mapping(tree, item, place))
    if thread is not None:
        fields.setdefault("thread", thread)
    fields["source"] = _source(tree, place, fields.get("source"))
    for part in _PARTS:
        if part in fields:
            listed = _list(tree, fields[part], (*place, part))
            fields[part] = [_part(tree, (*place, part, n), value, defaults) for n, value in enumerate(listed)]
    try:
        claim = Claim.model_validate(fields)
    except ValidationError as error:
        _refuse_first(tree, place, error)
    refuse_duplicates(claim, lambda n: (tree.path, tree.line((*place, "runs", n))))
    return claim


def refuse_duplicates(claim: Claim, place_of: Callable[[int], tuple[Path, int]]) -> None:
    """Refuse two runs that claim the same arm, round and operating point.

    Args:
        claim: whose runs.
        place_of: number of a run to its file and line.

    Raises:
        RefereeError: there are two; the line of the second is named.
    """
    seen: dict[tuple[Any, ...], int] = {}
    for number, run in enumerate(claim.runs):
        if run.round is None or run.superseded:
            continue
        key = (run.arm, run.round, run.concurrency, run.input_tokens, run.output_tokens, run.mode, run.order)
        if key in seen:
            path, line = place_of(number)
            given = f"round {run.round} of {run.arm!r}, as on line {place_of(seen[key])[1]}"
            refuse(path, line, "run", given, "each round of an arm once", "Give the repeat its own round.")
        seen[key] = number


def _part(tree: Tree, place: Place, item: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    fields = dict(_mapping(tree, item, place))
    fields["source"] = _source(tree, place, fields.get("source"))
    line = tree.line(place)
    kind = place[-2]
    if kind == "runs":
        fields = {**defaults, **fields}
        if "metrics" not in fields:
            typed = {name: fields.pop(name) for name in [n for n in fields if n not in Run.model_fields]}
            fields["metrics"] = metrics_of(tree.path, line, {n: v for n, v in typed.items() if v is not None})
    if kind == "published" and "printed" in fields:
        fields |= _printed(tree, place, str(fields.pop("printed")), ("value", "unit", "digits"))
    if kind == "scores" and "printed" in fields:
        fields |= _printed(tree, place, str(fields.pop("printed")), ("value", "", "digits"))
    return fields


def _printed(tree: Tree, place: Place, text: str, names: tuple[str, str, str]) -> dict[str, Any]:
    line = tree.line((*place, "printed"))
    value = printed_at(tree.path, line, "printed", text)
    if not names[1] and value.unit != "percent":
        refuse(tree.path, line, "printed", repr(text), "a percentage, such as '95.814%'")
    made = {names[0]: value.value, names[2]: value.digits}
    return made | ({names[1]: value.unit} if names[1] else {})


def _source(tree: Tree, place: Place, given: Any) -> Any:
    if isinstance(given, dict) and "file" in given:
        return given
    note = given.get("note", "") if isinstance(given, dict) else given or ""
    return {"file": short_name(tree.path), "line": tree.line(place), "note": note}


def _mapping(tree: Tree, value: Any, place: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse(tree.path, tree.line(place), _words(place), repr(value)[:60], "a mapping of names to values")
    return value


def _list(tree: Tree, value: Any, place: Place) -> list[Any]:
    if value is not None and not isinstance(value, list):
        refuse(tree.path, tree.line(place), _words(place), repr(value)[:60], "a list")
    return value or []


def _words(place: Place) -> str:
    return ".".join(str(p) for p in place) or "file"


def _refuse_first(tree: Tree, place: Place, error: ValidationError) -> None:
    inside, given, allowed = complaint(error.errors(include_url=False)[0])
    where = (*place, *inside)
    refuse(tree.path, tree.line(where), _words(where[2:]) or "claim", given, allowed)


def write_claims(path: Path, claims: Sequence[Claim]) -> None:
    """Write claims as YAML, whole or not at all; `read_claims` gives the same claims.

    Raises:
        RefereeError: no claim, or a name twice.
    """
    names = [claim.name for claim in claims]
    if not names or len(set(names)) < len(names):
        raise RefereeError("referee", f"claims are {names!r}; allowed: at least one, each name once.")
    write_atomic(path, yaml.safe_dump({"claims": [_plain(c) for c in claims]}, sort_keys=False, width=120))


def _plain(claim: Claim) -> dict[str, Any]:
    made = _listed(claim.model_dump(exclude_defaults=True))
    made["source"] = claim.source.model_dump()
    for part in _PARTS:
        for item, value in zip(made.get(part, ()), getattr(claim, part), strict=True):
            item["source"] = value.source.model_dump()
            if isinstance(value, Run):
                # Present even when empty, so that no other key of the run is taken for a metric.
                item["metrics"] = dict(value.metrics)
    return made


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value
