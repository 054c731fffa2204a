"""The engine on a Dask cluster, whose workers hold parts of the events."""
