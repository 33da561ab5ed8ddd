"""TLS 1.3 among the holders of a job's token, for jobs with encryption.

All processes of a job, and its controller, derive one key and one self-signed certificate from the token. Each end
presents this certificate and accepts no other, so who does not hold the token fails the handshake, as a client or as a
server. Nothing has to be distributed or renewed: the token remains the job's only secret, and the certificate is valid
as long as the token is.

Ed25519 signatures are deterministic (RFC 8032), so the certificate is the same, byte for byte, wherever it is derived.
The key only authenticates: traffic keys are ephemeral (RFC 8446), and traffic that was recorded stays unreadable to
those who learn the token later.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
from datetime import UTC, datetime

__all__ = ["client_context", "derive_key", "server_context"]

_NAME = "a holder of the job's token"
_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)  # the clocks of a cluster's nodes may be wrong
_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # "no well-defined expiration date" (RFC 5280, 4.1.2.5)


def derive_key(token: str, purpose: str) -> bytes:
    """A key of 32 bytes for one purpose: HKDF-Expand with SHA-256 (RFC 5869).

    A token has 128 random bits or more, so it needs no HKDF-Extract.
    """
    return hmac.new(token.encode(), purpose.encode() + b"\x01", hashlib.sha256).digest()


def server_context(token: str) -> ssl.SSLContext:
    """Settings of a server that admits only holders of the token."""
    return _context(ssl.PROTOCOL_TLS_SERVER, token)


def client_context(token: str) -> ssl.SSLContext:
    """Settings of a client that talks only to holders of the token."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, token)


def _context(protocol: int, token: str) -> ssl.SSLContext:
    key, certificate = _identity(token)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # exactly one certificate is trusted, wherever its holder runs
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    # OpenSSL reads keys from files. This one is in memory, and gone when it is closed.
    with os.fdopen(os.memfd_create("heterps-tls"), "w") as file:
        file.write(key + certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def _identity(token: str) -> tuple[str, str]:
    """Key and certificate, as PEM."""
    # Imported here, because commands that do without encryption should start quickly.
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.from_private_bytes(derive_key(token, "heterps TLS"))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)  # it vouches for no other
        .sign(key, algorithm=None)
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem.decode(), certificate.public_bytes(Encoding.PEM).decode()
