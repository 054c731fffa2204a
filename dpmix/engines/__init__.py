"""Engines: they hold the events and compute sufficient statistics from a mixture."""
