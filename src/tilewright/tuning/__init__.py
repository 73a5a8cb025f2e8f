"""Measuring the best configs of a problem against each other, and keeping the winner as a record."""
