"""Rare cells by relevance feedback: a Gaussian process over judged events, and the next events to judge."""
