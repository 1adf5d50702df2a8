from __future__ import annotations

import ssl

import pytest

from shinar.brokers.registry import connect, parse
from shinar.brokers.tls import tls_context
from shinar.errors import ConfigError

URLS = ["amqps://localhost/q?", "phpmqs://localhost/q?", "pulsar+ssl://localhost/q?"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("option", ["tls_ca", "tls_cert"])
def test_a_certificate_that_cannot_be_read_is_told_before_anything_is_sent(url, option, tmp_path):
    for content in (None, b"no certificate"):
        path = tmp_path / "file.pem"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match="certificate file cannot be read") as told:
            tls_context(parse(f"{url}{option}={path}"))
        assert "tls_ca" in str(told.value)


def test_rabbitmq_says_so_too(tmp_path):
    with pytest.raises(ConfigError, match="certificate file cannot be read"):
        connect(f"amqps://localhost/q?tls_ca={tmp_path / 'none.pem'}")


def test_verification_is_left_out_only_when_asked_for():
    assert tls_context(parse("amqps://localhost/q")).verify_mode is ssl.CERT_REQUIRED
    loose = tls_context(parse("amqps://localhost/q?tls_verify=false"))
    assert (loose.verify_mode, loose.check_hostname) == (ssl.CERT_NONE, False)
