"""From draws to populations: the tree of components, memberships, proportions, phenotypes."""
