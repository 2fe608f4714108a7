"""Kernels, one file per operation family, each with the code for every device."""
