"""Read and write FCS files."""
