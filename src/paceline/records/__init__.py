"""What a run leaves behind: its ledger and its summary. Never imports torch."""
