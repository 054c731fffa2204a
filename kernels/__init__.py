"""Kernels: CUDA sources and their compilation, the native CPU engine, and shared layouts."""
