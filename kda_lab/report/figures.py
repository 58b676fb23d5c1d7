"""The pictures of a report in one place: each function takes records and returns a matplotlib figure.

`speedup` and `speedup_by_batch` show one arm against the baseline, `latency` all arms against the
roofline, `errors` an arm's errors against the tolerance. `save` writes SVG and PNG.
"""

from kda_lab.report.batch_figure import speedup_by_batch
from kda_lab.report.error_figure import errors
from kda_lab.report.latency_figure import latency
from kda_lab.report.speedup_figure import speedup
from kda_lab.report.style import Picture, save

__all__ = ["Picture", "errors", "latency", "save", "speedup", "speedup_by_batch"]
