"""The runtime that calls the toy kernels."""
