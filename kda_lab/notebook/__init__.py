"""What a notebook calls: one session a run, each method one step, so that notebooks hold no logic.

Imports are lazy here, since a notebook must choose the interpreter before a kernel is defined.
"""

from kda_lab.notebook.export_session import ExportSession
from kda_lab.notebook.session import Session

__all__ = ["ExportSession", "Session"]
