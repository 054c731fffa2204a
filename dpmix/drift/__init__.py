"""Drift of a recording: the signal of each channel over acquisition time, by Gaussian processes."""
