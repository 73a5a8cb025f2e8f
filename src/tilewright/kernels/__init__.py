"""Kernel families: their device code, the configs they take, and how a config becomes a Source."""
