"""Exported kernels: one folder each, written by `kda-lab export`, never by hand."""
