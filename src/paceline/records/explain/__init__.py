"""Explanations of runs: what is found in a ledger, as sentences and as numbers."""
