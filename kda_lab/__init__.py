"""kda_lab: replay captured tensors, judge and time GPU kernels, export them with a contract."""

__version__ = "0.1.0"
