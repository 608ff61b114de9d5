"""Runs on several hosts in one process, under a virtual clock and over a virtual network, from one seed."""
