"""Each server of tests/servers starts, answers its usual client, keeps its data over a stop and a crash."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import servers


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def restarts(server):
    """Once politely, once by SIGKILL; the body of a loop over it must find the data each time."""
    if not server.durable:
        pytest.skip(f"answers, but forgets: {server.note}")
    if server.tls:
        # The same program on the same files: the plain one shows what a restart keeps.
        yield
        return
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


@pytest.mark.parametrize("by_tls", [False, True])
def test_postgresql(live_server, name, by_tls):
    import psycopg

    server = live_server("postgresql", tls=by_tls)
    options = f"?sslmode=verify-full&sslrootcert={server.tls.ca}" if by_tls else ""
    with psycopg.connect(server.url + options) as link:
        assert link.execute("SHOW fsync").fetchone() == ("on",)
        assert link.pgconn.ssl_in_use == by_tls
        link.execute(f"CREATE TABLE {name} (n int)")
        link.execute(f"INSERT INTO {name} VALUES (1)")
    for _ in restarts(server):
        with psycopg.connect(server.url + options) as link:
            assert link.execute(f"SELECT n FROM {name}").fetchall() == [(1,)]


@pytest.mark.parametrize("by_tls", [False, True])
def test_mariadb(live_server, name, by_tls):
    import pymysql

    server = live_server("mariadb", tls=by_tls)
    options = {"user": "shinar", "password": "secret", "database": "shinar", "autocommit": True}
    if by_tls:
        options |= {"ssl_ca": str(server.tls.ca), "ssl_verify_cert": True, "ssl_verify_identity": True}

    def query(sql: str):
        with pymysql.connect(host="127.0.0.1", port=server.port, **options) as link, link.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    cipher = query("SHOW STATUS LIKE 'Ssl_cipher'")[0][1]
    assert bool(cipher) == by_tls
    assert server.version in query("SELECT version()")[0][0]
    query(f"CREATE TABLE {name} (n int)")
    query(f"INSERT INTO {name} VALUES (1)")
    for _ in restarts(server):
        assert query(f"SELECT n FROM {name}") == ((1,),)


@pytest.mark.live("elasticmq")
def test_elasticmq(server, name):
    import boto3

    sqs = boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        region_name="eu-west-1",
        aws_access_key_id="x",
        aws_secret_access_key="y",
    )
    queue = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="one")
    for _ in restarts(server):
        queue = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        assert queue.startswith(f"http://127.0.0.1:{server.port}/")
        (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
        assert message["Body"] == "one"
    sqs.close()


@pytest.mark.parametrize("by_tls", [False, True])
def test_kafka(live_server, name, by_tls):
    from confluent_kafka import Consumer, Producer

    server = live_server("kafka", tls=by_tls)
    options = {"bootstrap.servers": f"127.0.0.1:{server.port}"}
    if by_tls:
        options |= {"security.protocol": "SSL", "ssl.ca.location": str(server.tls.ca)}
    producer = Producer({**options, "acks": "all"})
    producer.produce(name, b"one", headers={"a": b"b"})
    assert producer.flush(30) == 0
    for n, _ in enumerate(restarts(server)):
        consumer = Consumer({**options, "group.id": f"{name}-{n}", "auto.offset.reset": "earliest"})
        consumer.subscribe([name])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        assert (message.value(), message.headers()) == (b"one", [("a", b"b")])
        consumer.close()


@pytest.mark.parametrize("by_tls", [False, True])
def test_artemis(live_server, name, by_tls):
    from proton import Message, SSLDomain, symbol
    from proton.reactor import ReceiverOption, SenderOption
    from proton.utils import BlockingConnection

    class Queue(SenderOption, ReceiverOption):
        """Without the capability the server would make a topic."""

        def apply(self, link):
            side = link.target if link.is_sender else link.source
            side.capabilities.put_object(symbol("queue"))

    server = live_server("artemis", tls=by_tls)
    secure = None
    if by_tls:
        secure = SSLDomain(SSLDomain.MODE_CLIENT)
        secure.set_trusted_ca_db(str(server.tls.ca))
        secure.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)

    def connect() -> BlockingConnection:
        return BlockingConnection(
            f"amqp{'s' if by_tls else ''}://127.0.0.1:{server.port}",
            user="shinar",
            password="secret",
            allowed_mechs="PLAIN",
            ssl_domain=secure,
            timeout=30,
        )

    link = connect()
    link.create_sender(name, options=Queue()).send(Message("one", durable=True))
    link.close()
    for _ in restarts(server):
        link = connect()
        receiver = link.create_receiver(name, credit=1, options=Queue())
        assert receiver.receive(timeout=30).body == "one"
        receiver.release(delivered=False)
        link.close()


@pytest.mark.parametrize("by_tls", [False, True])
def test_pulsar(live_server, name, by_tls):
    import pulsar

    server = live_server("pulsar", tls=by_tls)
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)}
    if by_tls:
        options |= {"tls_trust_certs_file_path": str(server.tls.ca), "tls_validate_hostname": True}
    client = pulsar.Client(server.url, **options)
    client.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared).close()
    client.create_producer(name).send(b"one", properties={"a": "b"})
    client.close()
    for _ in restarts(server):
        client = pulsar.Client(server.url, **options)
        consumer = client.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared)
        message = consumer.receive(30_000)
        assert (message.data(), message.properties()) == (b"one", {"a": "b"})
        client.close()


@pytest.mark.live("servicebus")
def test_servicebus(server, name):
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    text = (
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    )

    def round_trip() -> None:
        with ServiceBusClient.from_connection_string(text) as client:
            with client.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage("one"))
            with client.get_queue_receiver(name, max_wait_time=30) as receiver:
                message = next(iter(receiver))
                assert str(message) == "one"
                receiver.complete_message(message)

    round_trip()
    server.kill()
    server.start()
    round_trip()


#: Starts a server as a test run would, tells its process group and directory, and waits for its end.
RUN = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
sys.path.insert(0, sys.argv[1])
import servers
server = servers.acquire("redis")
print(server.pid, server.home, flush=True)
time.sleep(600)
"""


def group_exists(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.live("redis")
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_run(server, sign):
    tests = str(Path(servers.__file__).parents[1])
    with subprocess.Popen([sys.executable, "-c", RUN, tests], stdout=subprocess.PIPE, text=True) as run:
        pid, home = run.stdout.readline().split()
        assert group_exists(int(pid))
        run.send_signal(sign)
    while group_exists(int(pid)) or Path(home).exists():  # ended by the test's own time limit
        time.sleep(0.05)


@pytest.mark.live("redis")
def test_a_server_left_down_is_up_for_the_next_test(server):
    server.kill()
    assert not server.alive
    assert servers.acquire("redis") is server
    assert server.alive


def test_a_private_server_is_not_the_shared_one(live_server):
    shared = live_server("redis")
    own = servers.start_private("redis")
    with contextlib.closing(own):
        assert (own.port, own.home) != (shared.port, shared.home)
    assert not own.alive
    assert shared.alive


def test_a_missing_server_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SHINAR_CACHE", str(tmp_path))
    with pytest.raises(servers.ServerMissing, match=r"install\.py artemis"):
        servers.start_private("artemis")


def test_an_unknown_name_is_refused():
    with pytest.raises(LookupError, match="there are redis, rabbitmq"):
        servers.acquire("reddis")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:1/0", "redis://h:1/0/a%2Fb"),
        ("amqp://u:p@h:1", "amqp://u:p@h:1/a%2Fb"),
        ("sqs://eu?endpoint=http://h:1&access_key=x", "sqs://eu/a%2Fb?endpoint=http://h:1&access_key=x"),
    ],
)
def test_a_queue_goes_into_the_path(url, expected):
    assert servers.with_queue(url, "a/b") == expected


#: A test that needs a server whose jars are not there.
NEEDY = """
import pytest

@pytest.mark.live("artemis")
def test_it(server):
    raise AssertionError("must not run")
"""


@pytest.mark.parametrize(("ci", "status", "outcome"), [("", 0, "1 skipped"), ("true", 1, "1 error")])
def test_a_missing_server_skips_on_a_laptop_and_fails_in_ci(tmp_path, ci, status, outcome):
    tests = Path(servers.__file__).parents[1]
    (tmp_path / "test_needy.py").write_text(NEEDY)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = live\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "CI": ci, "SHINAR_CACHE": str(tmp_path), "PYTHONPATH": str(tests)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, outcome in done.stdout) == (status, True), done.stdout + done.stderr
    assert "NOT TESTED: the jars of artemis are not here; run python tests/servers/install.py" in done.stdout
