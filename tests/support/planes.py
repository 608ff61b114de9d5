"""What a host's data plane has, for tests that bring its bytes themselves."""

from __future__ import annotations

from paceline.transfer.data_connection import PeerExchange
from paceline.transfer.data_plane import DataPlane
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Peer


def plane_of(carrier: TransferManager) -> DataPlane:
    """The plane that moves the host's bytes in this process."""
    plane = carrier._plane
    assert isinstance(plane, DataPlane)
    return plane


def meet(carrier: TransferManager, host: str, incarnation: int) -> PeerExchange:
    """Have that incarnation take part. Return what is exchanged with it."""
    carrier.meet(host, incarnation)
    return plane_of(carrier).exchanges[Peer(host, incarnation)]
