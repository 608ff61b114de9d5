"""A report of runs. `contents` reads ledgers into plain numbers for a page, figures and a trace."""
