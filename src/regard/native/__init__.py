"""CPU kernels in C: matrix products with few rows and packed weights, which memory bandwidth limits."""
