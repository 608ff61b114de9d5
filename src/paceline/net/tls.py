"""TLS 1.3 between hosts, from the token alone: nothing to configure, to store or to renew.

The key of a certificate authority follows from the token, so it is the same on every host. Each process issues itself a
certificate, in memory. A certificate of this authority proves that its owner has the token. No name is compared, and
certificates don't expire, so clocks don't matter.
"""

from __future__ import annotations

import os
import socket
import ssl
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paceline.net.token import Token

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of P-256's group. A private key is below it."""
FROM, UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


class Tls:
    """This process's certificate, and what it demands of others. See `handshake.Certificates`."""

    def __init__(self, token: Token) -> None:
        secret = int.from_bytes(token.key("authority", 48), "big") % (ORDER - 1) + 1
        authority = ec.derive_private_key(secret, ec.SECP256R1())
        own = ec.generate_private_key(ec.SECP256R1())
        issuer = _certificate(authority, authority, "authority")
        chain = own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ) + _pem(_certificate(own, authority, "host"))
        self._dials = _context(ssl.PROTOCOL_TLS_CLIENT, chain, _pem(issuer))
        self._listens = _context(ssl.PROTOCOL_TLS_SERVER, chain, _pem(issuer))

    def wrap(self, end: socket.socket, *, listens: bool) -> ssl.SSLSocket:
        """See `handshake.Certificates`."""
        context = self._listens if listens else self._dials
        return context.wrap_socket(end, server_side=listens, do_handshake_on_connect=False)


class _Socket(ssl.SSLSocket):
    """A socket that keeps TLS after `shutdown`. Python's own then returns encrypted bytes as they are."""

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)


def _certificate(of: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    authority = of is by
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name("authority"))
        .public_key(of.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(FROM)
        .not_valid_after(UNTIL)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(of.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    )
    if not authority:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(by, hashes.SHA256())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Paceline {name}")])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _context(protocol: int, chain: bytes, issuer: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.sslsocket_class = _Socket
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=issuer.decode())
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # no session is resumed over another connection
    file = os.memfd_create("paceline", os.MFD_CLOEXEC)  # `ssl` takes a key from a file only
    try:
        os.write(file, chain)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context
