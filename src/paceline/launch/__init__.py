"""Agents on other machines, started from the head."""
