"""Tensors: the flat layout, the store, and what stands in a user's script (model, optimizer, loader)."""
