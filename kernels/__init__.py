"""Native kernels: the CPU sweep (C++), and what belongs to them."""
