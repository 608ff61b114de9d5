"""Runs that leave nothing behind, and networks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.namespaces import Network, NotHere


@pytest.fixture
def networks() -> Iterator[Callable[..., Network]]:
    """Makes networks, which are gone after the test. Skips it where there can't be any."""
    made: list[Network] = []

    def make(hosts: int, rate: str | None = "1gbit") -> Network:
        try:
            made.append(Network(hosts, rate))
        except NotHere as error:
            pytest.skip(str(error))
        return made[-1]

    yield make
    for network in made:
        network.close()
