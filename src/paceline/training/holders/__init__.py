"""Holders show parameters to a script, each in its way: `holder` is their contract, `choice` says which one it is."""
