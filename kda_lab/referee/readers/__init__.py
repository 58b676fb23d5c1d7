"""Readers of the claim referee: files of other tools in, claims out."""

from kda_lab.referee.readers.claim_file import write_claims
from kda_lab.referee.readers.reader import read

__all__ = ["read", "write_claims"]
