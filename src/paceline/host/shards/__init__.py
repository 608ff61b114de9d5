"""Versions that several hosts make, each a range of them."""
