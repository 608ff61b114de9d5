"""Items on their way between hosts: who wants what, which ranges of it are there, and the connections for it."""
