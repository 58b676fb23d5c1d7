"""The recording of NVFP4 products as a notebook runs it; the steps are those of the QSA recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pandas.io.formats.style import Styler

from kda_lab.captures.nvfp4_agreement import GemmAgreement, gemm_agreement
from kda_lab.captures.nvfp4_record import TEXT_FILE, missing_models, record_nvfp4
from kda_lab.notebook import display
from kda_lab.notebook.capture_session import CaptureSession
from kda_lab.notebook.nvfp4_figure import cost_figure, operand_figure
from kda_lab.report.style import Picture


class GemmCaptureSession(CaptureSession):
    """One recording of `nvfp4.gemm`. `captures` is the new set, or the committed one where nothing was recorded."""

    def _possible(self, chosen: Sequence[str]) -> tuple[list[str], str]:
        missing = {name: reason for name, reason in missing_models().items() if name in chosen}
        return [n for n in chosen if n not in missing], "; ".join(f"{n} {reason}" for n, reason in missing.items())

    def _record(self, target: Path, chosen: Sequence[str]) -> Path:
        return record_nvfp4(self.committed.path / TEXT_FILE, target, models=chosen, replace=True)

    def _compared(self) -> Sequence[GemmAgreement]:
        return gemm_agreement(self.captures, self.committed)

    def _disagreement(self, record: GemmAgreement) -> str:
        return record.disagreement

    def capture_table(self) -> Styler:
        """Shape, layer, positions and hash of each capture."""
        lines = []
        for entry in self.captures.manifest.captures:
            m, n, k = (entry.facts[axis] for axis in ("M", "N", "K"))
            first, last = entry.source.positions[0], entry.source.positions[-1]
            layers = ", ".join(map(str, entry.source.layers))
            sha256 = self.captures.sha256_of(entry.name)[:12]
            lines.append((entry.name, entry.kind, m, n, k, layers, f"{first} to {last}", sha256))
        heads = ("capture", "kind", "M", "N", "K", "layer", "positions", "sha256")
        return display.shown(heads, lines)

    def agreement_table(self) -> Styler:
        """New against committed, capture by capture; the committed set against itself where nothing is new."""
        self.records = list(self._compared())
        heads = ("capture", "same weight", "x", "alpha", "pinned output", "same bytes")
        lines = [
            (r.name, r.same_weight, *(f"{e:.2e}" for e in (r.x, r.alpha, r.out)), r.same_bits) for r in self.records
        ]
        caption = "Errors: relative L2 of dequantised values against the committed set."
        return display.shown(heads, lines, caption)

    def operand_picture(self) -> Picture:
        """How codes and block scales of weights and activations are spread."""
        return operand_figure(self.captures)

    def cost_picture(self) -> Picture:
        """What quantising cost each product against the unquantised one."""
        return cost_figure(self.captures)
