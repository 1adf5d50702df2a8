"""Each server of tests/servers starts, answers its usual client, keeps its data over a stop and a crash."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def restarts(server):
    """Once politely, once by SIGKILL; the body of a loop over it must find the data each time."""
    port = server.port
    for end in (server.stop, server.kill):
        end()
        assert not server.alive
        server.start()
        assert server.port == port
        yield


@pytest.mark.live("redis")
def test_redis(server, name):
    import redis

    def client() -> redis.Redis:
        return redis.Redis.from_url(server.url)

    with client() as link:
        link.rpush(name, b"one")
        assert link.info("server")["redis_version"] == server.version
    for _ in restarts(server):
        with client() as link:
            assert link.lrange(name, 0, -1) == [b"one"]


@pytest.mark.live("redis", tls=True)
def test_redis_by_tls(server):
    import redis

    with redis.Redis.from_url(server.url, ssl_ca_certs=str(server.tls.ca)) as link:
        assert link.ping()


@pytest.mark.live("rabbitmq")
def test_rabbitmq(server, name):
    import pika

    parameters = pika.URLParameters(f"{server.url}/%2F")
    with pika.BlockingConnection(parameters) as link:
        channel = link.channel()
        channel.confirm_delivery()
        channel.queue_declare(name, durable=True)
        channel.basic_publish("", name, b"one", pika.BasicProperties(delivery_mode=2))
    for _ in restarts(server):
        with pika.BlockingConnection(parameters) as link:
            _, _, body = link.channel().basic_get(name)
            assert body == b"one"


@pytest.mark.live("rabbitmq", tls=True)
def test_rabbitmq_by_tls(server):
    import ssl

    import pika

    parameters = pika.URLParameters(f"{server.url}/%2F")
    parameters.ssl_options = pika.SSLOptions(ssl.create_default_context(cafile=server.tls.ca), "127.0.0.1")
    with pika.BlockingConnection(parameters) as link:
        assert link.channel().is_open
