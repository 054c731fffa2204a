"""The Python API: runs, the estimator and AnnData. Import its names from `dpmix`."""
