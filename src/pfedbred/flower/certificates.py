"""Certificates and keys for development: an authority of one's own, the SuperLink's certificate, a key for each node.

For a federation that matters, take the certificate from the authority that the organisation trusts, and let every node
make its own key (``ssh-keygen -t ecdsa -b 384``) so that the private half never travels.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pfedbred.errors import SettingError
from pfedbred.runs import records

_DAYS = 365
FILES = ("ca.crt", "superlink.crt", "superlink.key")
"""The authority's certificate, the SuperLink's, and its private key."""


class Authority(NamedTuple):
    """Where the certificates are.

    Attributes:
      ca: the authority's, which everyone needs.
      certificate: the SuperLink's.
      key: the SuperLink's private key.
    """

    ca: Path
    certificate: Path
    key: Path


def make(folder: Path, hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> Authority:
    """An authority and a certificate for a SuperLink that is reached by these names and addresses."""
    found = Authority(*(folder / name for name in FILES))
    names = [_name(host) for host in hosts]
    records.find_folder(folder)
    if found.ca.exists():
        raise SettingError(f"{folder} has certificates already")
    ca_key, own_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pfedbred development authority")])
    ca = (
        _certificate(authority, authority, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    own = (
        _certificate(subject, authority, own_key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    found.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    found.certificate.write_bytes(own.public_bytes(serialization.Encoding.PEM))
    _private(found.key, own_key, serialization.PrivateFormat.TraditionalOpenSSL)
    return found  # the authority's own key is not kept: it signs this certificate and no other


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
    with suppress(ValueError):  # else it is a name
        return x509.IPAddress(ipaddress.ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError:
        raise SettingError(f"a host is a name in ASCII or an address, not {host!r}") from None


def node_key(path: Path) -> Path:
    """A node's private key, and beside it, with ``.pub``, the public one that the SuperLink has to know."""
    if path.exists():
        raise SettingError(f"{path} exists already")
    key = ec.generate_private_key(ec.SECP384R1())
    _private(path, key, serialization.PrivateFormat.OpenSSH)
    public = path.with_name(f"{path.name}.pub")
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return public


def _private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Writes a private key that nobody else can read."""
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
