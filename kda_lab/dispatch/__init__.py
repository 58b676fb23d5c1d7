"""Dispatch: which exported kernel serves a call, why the others do not, and how they are loaded."""

from kda_lab.dispatch.dispatcher import DISPATCHER, Dispatcher
from kda_lab.dispatch.explanation import Explanation
from kda_lab.dispatch.fallback import FallbackFunction, FallbackVerdict
from kda_lab.dispatch.loader import (
    KernelFolder,
    LoadedKernel,
    kernel_folders,
    load_kernel,
    load_source,
    read_contract,
    read_contracts,
)
from kda_lab.dispatch.statistics import Statistics

__all__ = [
    "DISPATCHER",
    "Dispatcher",
    "Explanation",
    "FallbackFunction",
    "FallbackVerdict",
    "KernelFolder",
    "LoadedKernel",
    "Statistics",
    "kernel_folders",
    "load_kernel",
    "load_source",
    "read_contract",
    "read_contracts",
]
