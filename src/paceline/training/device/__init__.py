"""Copies between memory and a device, such as a GPU."""
