"""The batches that a script gets, and what its gradients are of."""
