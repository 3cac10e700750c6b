"""GPU kernels in Triton: a decode step in few launches, and linear attention.

For one token per row, launching a kernel takes longer than running it.
"""
