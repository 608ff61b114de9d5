"""A report of runs: `contents` reads their ledgers into plain numbers, which a page, figures and a trace show."""
