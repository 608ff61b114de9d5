"""One host's share of a run: its workers' items, where they lie, and how orders about them are carried out."""
