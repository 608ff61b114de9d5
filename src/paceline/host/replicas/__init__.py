"""Replicas, of workers here and of other hosts' workers."""
