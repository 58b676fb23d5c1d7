"""Write the made-up traces as files: torch-profiler JSON and an Nsight Systems export, each labelled as made up.

`python -m kda_lab.referee.slices.generated_files data/traces` writes the committed ones again.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from kda_lab.referee.slices.generated import BASELINE, CANDIDATE, SEED, made_up_kernels
from kda_lab.referee.slices.kernel_list import NS_PER_US, Kernel
from kda_lab.run_folder import write_atomic

LABEL = f"made up by kda_lab.referee.slices.generated, seed {SEED}; nothing here was measured"
ARMS = {"unfused": BASELINE, "fused": CANDIDATE}
STEPS, SQLITE_STEPS = 5, 1
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL
);
"""
"""Tables of an export with the columns that matter here, as the documentation of Nsight Systems describes them."""


def kineto_json(kernels: Iterable[Kernel], label: str = LABEL) -> str:
    """A torch-profiler trace of kernels: microseconds with three decimals, one event a line."""
    lines = (
        f'{{"ph":"X","cat":"kernel","name":{json.dumps(k.name)},"pid":{k.device},"tid":{k.stream},"ts":{_us(k.start_ns)},'
        f'"dur":{_us(k.duration_ns)},"args":{{"device":{k.device},"stream":{k.stream}}}}}'
        for k in kernels
    )
    head = f'{{"schemaVersion":1,"displayTimeUnit":"ms","kda_lab":{json.dumps(label)},"traceEvents":['
    return head + "\n" + ",\n".join(lines) + "\n]}\n"


def nsight_sqlite(kernels: Sequence[Kernel], label: str = LABEL) -> bytes:
    """An Nsight Systems export of kernels, as the bytes of its file."""
    names = {name: number for number, name in enumerate(sorted({k.name for k in kernels}))}
    rows = [
        (k.start_ns, k.end_ns, k.device, 1, k.stream, number, 0, names[k.name], names[k.name])
        for number, k in enumerate(kernels)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.sqlite"
        with closing(sqlite3.connect(path)) as database:
            database.executescript(SCHEMA)
            database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, name) for name, i in names.items()])
            database.execute("INSERT INTO META_DATA_EXPORT VALUES ('LABEL', ?)", (label,))
            database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            database.commit()
        return path.read_bytes()


def write_traces(folder: str | Path) -> list[Path]:
    """Write the traces of both arms into a folder, each file whole or not at all; returns their paths."""
    written = []
    for arm, targets in ARMS.items():
        # A seed an arm: two runs of a model do not jitter alike.
        seed = SEED + targets.fused
        text = kineto_json(made_up_kernels(targets, STEPS, seed)).encode()
        for name, content in (
            (f"made_up_{arm}.pt.trace.json.gz", gzip.compress(text, mtime=0)),
            (f"made_up_{arm}.sqlite", nsight_sqlite(made_up_kernels(targets, SQLITE_STEPS, seed))),
        ):
            path = Path(folder) / name
            write_atomic(path, content)
            written.append(path)
    return written


def _us(value_ns: int) -> str:
    return f"{value_ns // NS_PER_US}.{value_ns % NS_PER_US:03d}"


if __name__ == "__main__":
    write_traces(sys.argv[1])
