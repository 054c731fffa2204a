"""The engine on a cluster of Dask: parts of the events on its workers."""
