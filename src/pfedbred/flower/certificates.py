"""Certificates and keys for development: a private authority, the SuperLink's certificate, a key for each node.

In production, use a certificate from an authority that the organisation trusts, and let every node generate its own key
(``ssh-keygen -t ecdsa -b 384``), so that private keys never travel.

The certificates are built with ``cryptography``, which Flower depends on. ``trustme`` would be shorter, but its
authority is valid until the year 3000, and its certificates may also sign code and authenticate clients; neither can be
changed.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pfedbred.errors import SettingError
from pfedbred.io.atomic import replacing
from pfedbred.io.folders import ensure_folder
from pfedbred.io.strict import read_text

_DAYS = 365
_LARGEST = 2**20  # bytes of a file
FILES = ("ca.crt", "superlink.crt", "superlink.key")
"""The authority's certificate, the SuperLink's certificate, and the SuperLink's private key."""


class Authority(NamedTuple):
    """Paths of the files that ``make`` writes.

    Attributes:
      ca: the authority's certificate, which every machine needs.
      certificate: the SuperLink's certificate.
      key: the SuperLink's private key.
    """

    ca: Path
    certificate: Path
    key: Path


def make(folder: Path, hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> Authority:
    """Creates an authority, and a certificate for a SuperLink with these host names and addresses."""
    paths = Authority(*(folder / name for name in FILES))
    names = [_name(host) for host in hosts]
    ensure_folder(folder)
    if any(path.exists() for path in paths):
        raise SettingError(f"{folder} already has certificates")
    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pfedbred development authority")])
    ca = (
        _certificate(authority, authority, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        _certificate(subject, authority, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _write(
        {
            paths.key: _private(key, serialization.PrivateFormat.TraditionalOpenSSL),
            paths.certificate: certificate.public_bytes(serialization.Encoding.PEM),
            paths.ca: ca.public_bytes(serialization.Encoding.PEM),
        },
        private=paths.key,
    )
    return paths  # the authority's key is not kept: it signs this certificate and no other


def check(folder: Path) -> None:
    """Rejects a folder unless it has all the files that ``make`` writes, intact and matching."""
    keys = {}
    for name in FILES:
        path = folder / name
        if path.exists():
            content = read_text(path, _LARGEST).encode()
            with suppress(ValueError, TypeError, UnsupportedAlgorithm):
                held = (
                    serialization.load_pem_private_key(content, None)
                    if name == FILES[-1]
                    else x509.load_pem_x509_certificate(content)
                )
                keys[name] = held.public_key()
        if name not in keys or (name == FILES[-1] and keys[name] != keys[FILES[1]]):
            raise SettingError(
                f"{path} is missing or damaged: remove {', '.join(FILES)}, run this again, and distribute the "
                f"new {FILES[0]}"
            )


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    if not host:
        raise SettingError("a host must be an ASCII name or an IP address, not ''")
    with suppress(ValueError):  # not an address, so a name
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError:
        raise SettingError(f"a host must be an ASCII name or an IP address, not {host!r}") from None


def node_key(path: Path) -> Path:
    """Creates a node's private key; returns the public key beside it (``.pub``), to register with the SuperLink."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = path.with_name(f"{path.name}.pub")
    openssh = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write({path: _private(key, serialization.PrivateFormat.OpenSSH), public: openssh}, private=path)
    return public


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(files: Mapping[Path, bytes], private: Path) -> None:
    """Writes all of these new files or none; only the owner can read the private one, everyone the others."""
    for path in files:
        if path.exists():
            raise SettingError(f"{path} already exists")
    try:
        for path, content in files.items():
            with replacing(path) as file:
                if path != private:
                    Path(file.name).chmod(0o644)
                file.write(content)
    except BaseException:
        for path in files:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        raise
