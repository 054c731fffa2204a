"""The engine on NVIDIA GPUs, through PyCUDA."""
