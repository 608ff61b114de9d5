"""Addresses as they are typed."""

from __future__ import annotations

import socket

import pytest

from paceline.errors import ConfigError
from paceline.net.tcp import shown
from paceline.runs.addresses import everywhere, parsed, resolved


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:7117", ("10.0.0.1", 7117)),
        ("[::1]:7117", ("::1", 7117)),
        ("node-7.lab:1", ("node-7.lab", 1)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_an_address_is_a_host_and_a_port_and_is_shown_as_it_is_typed(text: str, address: tuple[str, int]) -> None:
    assert parsed(text, "--listen") == address
    assert shown(address) == text


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_who_listens_on_all_networks_is_told_what_that_means(host: str) -> None:
    assert everywhere((host, 7117)).startswith(
        f"--listen {shown((host, 7117))} listens on all networks of this machine"
    )
    assert not everywhere(("127.0.0.1", 7117))
    assert not everywhere(("fe80::1", 7117))


@pytest.mark.parametrize("text", ["", "7117", "10.0.0.1", "10.0.0.1:", ":7117", "::1:7117", "a:65536", "a:0", "a b:1"])
def test_what_is_no_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--listen is .*; write an address and a port, such as 10\.0\.0\.1:7117"
    ) as why:
        parsed(text, "--listen")
    assert "\n" not in str(why.value)


def test_who_listens_may_have_the_kernel_choose_the_port() -> None:
    assert parsed("127.0.0.1:0", "--listen", least=0) == ("127.0.0.1", 0)


def test_a_name_becomes_a_number_and_one_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved(("127.0.0.1", 1), "HEAD") == ("127.0.0.1", 1)

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(
        ConfigError, match=r"HEAD nowhere:1: no host is known by that name \(Name or service not known\)"
    ):
        resolved(("nowhere", 1), "HEAD")
