"""What the processes of one host say to each other: a module for each process that a host talks to."""

from paceline.ipc.endpoint import Message
from paceline.ipc.messages import store, tracker, worker, zygote

__all__ = ["Message", "store", "tracker", "worker", "zygote"]
