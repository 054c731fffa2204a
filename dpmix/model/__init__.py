"""The statistics: the mixture and its prior, the Gibbs sweep, Bayesian EM, and random streams."""
