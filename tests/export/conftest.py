"""Records of a run as a GPU would leave them, for the toy candidate, and a small synthetic capture set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kda_lab.captures.store import CaptureSet
from kda_lab.captures.synthetic import synthetic_set
from kda_lab.dispatch.kernel_files import source_digest
from kda_lab.run_folder import RunFolder, write_json, write_json_lines
from kda_lab.timing.graph import GraphTimer
from kda_lab.timing.protocol import Protocol
from kda_lab.timing.records import validated
from kda_lab.verify.checks import CHECK_NAMES

TOY = Path(__file__).with_name("toy_candidate.py")
CUDA_TOY = Path(__file__).with_name("toy_cuda_candidate.py")
OP = "qsa.packed_decode"
Record = dict[str, Any]


def provenance(capability: tuple[int, int]) -> Record:
    device = {"type": "cuda", "name": "a GPU", "capability": list(capability), "interpreter": False}
    return {"kda_lab": "0", "git": {"commit": "abc", "dirty": False}, "device": device, "versions": {}}


class Records:
    """Builds the records of one capability for one source; a test changes what it wants to see refused."""

    def __init__(
        self,
        captures: Path,
        source: Path = TOY,
        capability: tuple[int, int] = (9, 0),
        language: str = "triton",
        kernel: str = "_toy_kernel",
    ) -> None:
        self.sha256 = source_digest(source, language)
        self.kernel = kernel
        self.arm = source.stem
        self.provenance = provenance(capability)
        opened = CaptureSet.open(captures)
        self.captures = {name: opened.load(name) for name in opened.names()}

    def verify(self) -> list[Record]:
        return [r for name in self.captures for r in (self.replay(name), self.power(name))]

    def replay(self, name: str) -> Record:
        loose = ("error_fp32", "error_pinned", "row_max", "changed_lengths_shorter", "changed_lengths_longer")
        limits = {n: 0.005 if n in loose else 0.0 for n in CHECK_NAMES}
        checks = [{"name": n, "passed": True, "value": 0.0, "limit": x, "detail": ""} for n, x in limits.items()]
        return {
            "kind": "replay",
            "op": OP,
            "capture": name,
            "capture_sha256": self.captures[name].sha256,
            "capture_kind": "synthetic",
            "axes": {"B": 1, "HQ": 12, "HKV": 1},
            "arm": self.arm,
            "role": "candidate",
            "source_sha256": self.sha256,
            "device": "cuda",
            "interpreter": False,
            "checks": checks,
            "skipped": {},
            "passed": True,
            "errors": {"fp32": 0.001, "fp64": 0.001, "pinned": None, "row_max": 0.002, "floor": 0.001},
            "provenance": self.provenance,
        }

    def power(self, name: str) -> Record:
        mutants = [
            {"name": "head_map", "killed": True, "by": "error_fp32", "applies": True, "why_not": ""},
            {"name": "one_head", "killed": False, "by": "", "applies": False, "why_not": "one KV head"},
        ]
        return {
            "kind": "power",
            "op": OP,
            "capture": name,
            "capture_sha256": self.captures[name].sha256,
            "killed": 1,
            "total": 1,
            "control": {"arm": "emulated", "passed": True, "failed": []},
            "mutants": mutants,
            "provenance": self.provenance,
        }

    def timing(self, times_us: dict[tuple[int, str], float], peer_us: float | None = None) -> list[Record]:
        """Five trials of baseline (20 us), control and candidate a (B, length class); `peer_us` adds a peer."""
        lines = []
        for (batch, kind), arm_us in times_us.items():
            arms = [("slow", "baseline", 20.0), (self.arm, "candidate", arm_us), ("slow", "control", 20.0)]
            arms += [("library", "peer", peer_us)] if peer_us else []
            for trial in range(Protocol().trials):
                for order, (arm, role, us) in enumerate(arms):
                    wobble = 1 + 0.001 * ((trial + order) % 3)
                    lines.append(self._trial((batch, kind), (arm, role), us * wobble, (trial, order)))
        return lines

    def _trial(self, row: tuple[int, str], arm: tuple[str, str], us: float, place: tuple[int, int]) -> Record:
        telemetry = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 300.0, "temperature_c": 40}
        return validated(
            {
                "op": OP,
                "row": f"tp2-B{row[0]}-{row[1]}",
                "axes": {"HQ": 12, "HKV": 1, "B": row[0], "lengths": row[1]},
                "arm": arm[0],
                "role": arm[1],
                "baseline": "slow",
                "trial": place[0],
                "order": place[1],
                "state": "cold",
                "samples_us": [us],
                "median_us": us,
                "calls_per_graph": 96,
                "input_sets": 8,
                "bytes_per_call": 50_000_000,
                "bytes_rotated": 400_000_000,
                "l2_bytes": 60_000_000,
                "flops": 1,
                "bandwidth_gb_s": 1.0,
                "copy_bandwidth_gb_s": 4300.0,
                "read_bandwidth_gb_s": 4300.0,
                "roof_us": 3.0,
                "kernels": {self.kernel: 1},
                "prepare_us": 1.0,
                "timer": GraphTimer.name,
                "telemetry": {**telemetry, "throttle": (), "other_processes": 0},
                "recheck": {"passed": True, "error": 0.001, "limit": 0.005},
                "protocol": Protocol().name,
                "source_sha256": self.sha256 if arm[1] == "candidate" else "",
                "provenance": self.provenance,
            }
        )


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of two tiny synthetic captures."""
    folder = tmp_path_factory.mktemp("captures") / "set"
    return Path(synthetic_set(OP, folder, seed=3, labels=["tp2-B1-short", "tp2-B2-short"]))


@pytest.fixture
def records(captures: Path) -> Records:
    """Builder of records for the toy candidate on a (9, 0) GPU."""
    return Records(captures)


@pytest.fixture
def cuda_records(captures: Path) -> Records:
    """Builder of records for the toy in CUDA C++, with its kernel's name as a profiler shows it."""
    name = "void toy_decode<12, 256>(unsigned short const*, ...)"
    return Records(captures, CUDA_TOY, language="cuda", kernel=name)


WriteRun = Callable[..., RunFolder]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Write records into a run folder."""

    def write(verify: Sequence[Record], timing: Sequence[Record] = (), name: str = "run") -> RunFolder:
        run = RunFolder.at(tmp_path / "runs" / name)
        write_json_lines(run.verify_records, verify)
        write_json_lines(run.timing_records, timing)
        write_json(run.verdict, {"passed": True})
        return run

    return write
