"""Holders show parameters to a script and push what comes of them: `holder` is the contract, `choice` picks one."""
