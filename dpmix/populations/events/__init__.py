"""Quantities of populations from their events: proportions, levels, names and outlines."""
