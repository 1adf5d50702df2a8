"""The TLS context of a broker URL (tls_ca, tls_cert, tls_key, tls_verify), for clients that take one."""

from __future__ import annotations

import ssl

from shinar.brokers.url import BrokerUrl
from shinar.errors import ConfigError


def tls_context(url: BrokerUrl) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=url.option("tls_ca") or None)
        if url.option("tls_cert"):
            context.load_cert_chain(url.option("tls_cert"), url.option("tls_key") or None)
    except OSError as exc:  # ssl.SSLError is one: a file that holds no certificate
        raise ConfigError(
            f"a certificate file cannot be read: {exc.strerror or exc}", setting="?tls_ca= or ?tls_cert="
        ) from None
    if not url.flag("tls_verify", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
