"""A throw-away authority and a certificate for 127.0.0.1 and localhost. For tests only: keys lie open."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM. `key` is PKCS#8 without a password; `bundle` is key and certificate in one file."""

    ca: Path
    certificate: Path
    key: Path
    bundle: Path
    #: For mutual TLS: signed by the same authority.
    client_certificate: Path
    client_key: Path


def make_certificates(directory: Path) -> Certificates:
    # Here, so that servers without TLS do not need the package.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    directory.mkdir(parents=True)
    now = datetime.datetime.now(datetime.UTC)

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    def pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("Shinar test authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=2))
        )

    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        builder("Shinar test authority", ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(x509, signs=True), critical=True)
        .add_extension(ca_identifier, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    (directory / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    for role in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        # Servers with one key store (Kafka) present this certificate as clients of their peers, too.
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH]
        usage += [ExtendedKeyUsageOID.SERVER_AUTH] if role == "server" else []
        hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        certificate = (
            builder("127.0.0.1" if role == "server" else "shinar client", key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(x509, signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_identifier), critical=False
            )
            .sign(ca_key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        (directory / f"{role}.pem").write_bytes(pem)
        (directory / f"{role}.key").write_bytes(pem_key(key))
        (directory / f"{role}-bundle.pem").write_bytes(pem_key(key) + pem)
    return Certificates(
        ca=directory / "ca.pem",
        certificate=directory / "server.pem",
        key=directory / "server.key",
        bundle=directory / "server-bundle.pem",
        client_certificate=directory / "client.pem",
        client_key=directory / "client.key",
    )


def _key_usage(x509, *, signs: bool):
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def talk_tls(port: int, certificates: Certificates, say: bytes, expect: bytes) -> bool:
    """As process.talk, through TLS with the name checked."""
    context = ssl.create_default_context(cafile=certificates.ca)
    with socket.create_connection(("127.0.0.1", port), timeout=2.0) as link:
        with context.wrap_socket(link, server_hostname="127.0.0.1") as secure:
            secure.sendall(say)
            return secure.recv(len(expect)).startswith(expect)
