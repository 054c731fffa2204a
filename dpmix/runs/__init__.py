"""A run from start to file: starts, loops, the run file, its reader and writer, diagnostics."""
