"""The pictures of a report in one place: each function takes records and returns a matplotlib figure.

`speedup` and `speedup_by_batch` show one arm against the baseline, `speedup_over_each` against the peers
too, `latency` all arms against the roofline, `roof_shares` how much of it each arm reaches, `eight_sets`
the source thread's protocol beside the cold one, `errors` an arm's errors against the tolerance,
`pipeline` cache policies apart and in a chain. `save` writes SVG and PNG.
"""

from kda_lab.report.batch_figure import speedup_by_batch, speedup_over_each
from kda_lab.report.eight_figure import eight_sets
from kda_lab.report.error_figure import errors
from kda_lab.report.latency_figure import latency
from kda_lab.report.pipeline_figure import pipeline
from kda_lab.report.roof_figure import roof_shares
from kda_lab.report.speedup_figure import speedup
from kda_lab.report.style import Picture, save

__all__ = [
    "Picture",
    "eight_sets",
    "errors",
    "latency",
    "pipeline",
    "roof_shares",
    "save",
    "speedup",
    "speedup_by_batch",
    "speedup_over_each",
]
