"""Simulate samples with known populations."""
