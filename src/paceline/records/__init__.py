"""A run's ledger and summary, and what is read from them. Never imports torch."""
