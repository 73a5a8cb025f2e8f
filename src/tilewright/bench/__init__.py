"""Measurements: shapes, operands, checks and baselines go in, rows come out. The only room that may import torch."""
