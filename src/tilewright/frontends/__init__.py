"""One frontend a framework: what its users call, and the one place beside bench/ that imports it."""
