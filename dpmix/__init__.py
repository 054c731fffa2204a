"""Bayesian sampler for truncated Dirichlet process mixtures of multivariate normals."""
