"""Time variants of a candidate on a GPU: its tunables replaced in copies of its file. For choosing, never a verdict.

    python benchmarks/variants.py kda.verify_ring streamed --row hv12-B32-T4 --row hv12-B1-T4 \\
        --variant 'few:BLOCK_V=32,NUM_WARPS=2' --variant 'free:MAX_REGISTERS=None' --beside chain

A tunable is a name that the file assigns at its top level; its value is any Python expression, also a table of schedules
(`'one:SCHEDULES=((1 << 62, Schedule(block_v=32, num_warps=4)),)'`). The file as it is comes first. Every variant runs
through one trial of the timing protocol: rotated input sets, one graph, recheck on poisoned buffers, no control that
would make it a verdict. Variants are compiled beforehand, side by side in `--processes` processes.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from kda_lab.notebook.row_choice import matching_rows
from kda_lab.ops.arms import candidate_arm, find_arm
from kda_lab.ops.protocol import Arm, Row
from kda_lab.ops.registry import load_op
from kda_lab.timing.machine import machine_for, why_not_timed
from kda_lab.timing.measure import time_row
from kda_lab.timing.protocol import Protocol

CANDIDATES = Path(__file__).resolve().parents[1] / "notebooks" / "candidates"
UNCHANGED = "as_it_is"


@dataclass(frozen=True)
class Variant:
    """A name, and tunables with the expressions that take their values' place."""

    name: str
    values: dict[str, str]

    @classmethod
    def parsed(cls, text: str) -> Variant:
        """Of `name:TUNABLE=expression,TUNABLE=expression`.

        Raises:
            ValueError: the text is not of that form, or an expression is not Python's.
        """
        name, _, rest = text.partition(":")
        try:
            (call,) = ast.parse(f"f({rest})").body
            keywords = call.value.keywords  # type: ignore[attr-defined]
            values = {k.arg: ast.unparse(k.value) for k in keywords}
        except (SyntaxError, AttributeError) as error:
            raise ValueError(f"variant is {text!r}; allowed: name:TUNABLE=expression,… ({error})") from error
        if not name.isidentifier() or not values or None in values:
            raise ValueError(
                f"variant is {text!r}; allowed: an identifier, a colon, and at least one TUNABLE=expression"
            )
        return cls(name, values)


def changed_source(source: str, values: dict[str, str]) -> str:
    """The source with other values at its top-level assignments of these names.

    Raises:
        ValueError: a name that the source does not assign exactly once at its top level; the text lists those it does.
    """
    lines = source.splitlines(keepends=True)
    found: dict[str, ast.expr] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in values and name in found:
                raise ValueError(f"tunable is {name!r}; allowed: a name that the file assigns once")
            found[name] = node.value
    if unknown := sorted(set(values) - set(found)):
        raise ValueError(f"tunables are {unknown}; allowed: {', '.join(sorted(found))}")
    # From the last one on, so that places before it stay.
    for name in sorted(values, key=lambda n: found[n].lineno, reverse=True):
        node = found[name]
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        # Offsets count bytes of UTF-8.
        head = lines[first].encode()[: node.col_offset].decode()
        tail = lines[last].encode()[node.end_col_offset :].decode()
        lines[first : last + 1] = [f"{head}{values[name]}{tail}"]
    return "".join(lines)


def write_variants(op: str, stem: str, variants: Sequence[Variant], folder: Path) -> list[Path]:
    """Files of the candidate as it is and of each variant, with the device code beside them where there is some."""
    original = CANDIDATES / op / f"{stem}.py"
    source, found = original.read_text(), []
    for variant in (Variant(UNCHANGED, {}), *variants):
        path = folder / f"{variant.name}.py"
        path.write_text(changed_source(source, variant.values))
        if original.with_suffix(".cu").exists():
            shutil.copy(original.with_suffix(".cu"), path.with_suffix(".cu"))
        found.append(path)
    return found


def compile_first(op: str, rows: Sequence[Row], path: Path) -> str:
    """Launch a variant once on each row, so that its kernels are in the compiler's cache; what went wrong, or nothing."""
    cases, device = load_op(op).cases, torch.device("cuda")
    try:
        for row in rows:
            calls = cases.make_sets(row, 1, 0, device)
            candidate_arm(path).bind(calls)[0]()
        torch.cuda.synchronize()
    # Expected: whatever a compiler or a launch says of a schedule that does not fit.
    except Exception as error:  # noqa: BLE001
        return f"{path.stem}: {' '.join(str(error).split())[:200]}"
    return ""


def timed(op: str, row: Row, arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """One trial of every arm; the first is the baseline that the protocol asks for, and its control is left out."""
    roles = ["baseline", *["candidate"] * (len(arms) - 1)]
    protocol = replace(Protocol(), trials=1, spare_trials=0)
    machine = machine_for(torch.device("cuda"))
    found = time_row(load_op(op), row, list(zip(arms, roles, strict=True)), machine=machine, protocol=protocol)
    return [record for record in found if record["role"] != "control"]


def told(record: dict[str, Any]) -> str:
    """One line of a record: arm, time, share of the roof, and what was wrong with it."""
    if record["kind"] == "refused":
        return f"  {record['arm']:24s} refused: {record['reason'][:120]}"
    share = record["roof_us"] / record["median_us"]
    return f"  {record['arm']:24s} {record['median_us']:9.2f} us {share:6.1%} of the roof  {record['dropped']}"


def main(given: Sequence[str] | None = None) -> int:
    """Parse, compile, time and print; 2 with a line on stderr where the request cannot be met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op")
    parser.add_argument("candidate", help="stem of a file in notebooks/candidates/<op>/")
    parser.add_argument("--row", action="append", required=True, help="label of one of the op's rows; repeated")
    parser.add_argument("--variant", action="append", default=[], help="name:TUNABLE=expression,…; repeated")
    parser.add_argument("--beside", action="append", default=[], help="one of the op's own arms; repeated")
    parser.add_argument("--processes", type=int, default=4)
    asked = parser.parse_args(given)
    try:
        offered = {row.label: row for row in matching_rows(asked.op, {})}
        if unknown := [label for label in asked.row if label not in offered]:
            raise ValueError(f"rows are {unknown}; allowed: {', '.join(offered)}")
        variants, beside = (
            [Variant.parsed(text) for text in asked.variant],
            [find_arm(asked.op, n) for n in asked.beside],
        )
        with tempfile.TemporaryDirectory() as folder:
            paths = write_variants(asked.op, asked.candidate, variants, Path(folder))
            if reason := why_not_timed(torch.device("cuda" if torch.cuda.is_available() else "cpu")):
                raise ValueError(f"{reason}; allowed: a machine with a GPU")
            rows = [offered[label] for label in asked.row]
            with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
                done = [pool.submit(compile_first, asked.op, rows, path) for path in paths]
                print(*filter(None, (task.result() for task in done)), sep="\n")  # noqa: T201
            for row in rows:
                print(row.label, *map(told, timed(asked.op, row, [*map(candidate_arm, paths), *beside])), sep="\n")  # noqa: T201
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
