"""Apache Kafka, one node in both roles (KRaft); where its jars are not at hand, librdkafka's mock cluster."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path

from servers.jars import JVM, java, version_of
from servers.process import Plan, ServerBroken, ServerMissing, clean_env, free_port, talk
from servers.tls import Certificates

#: Any 16 bytes in base64.
CLUSTER = "c2hpbmFyLXRlc3QtMDAwMQ"
#: Of `plan_with_login`: PLAIN and SCRAM-SHA-256 know the same user.
USER, PASSWORD = "shinar", "sesame-kafka"
#: ApiVersions v0, correlation 7, without a client id; the answer begins with its length.
HELLO = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"


def plan(home: Path, tls: Certificates | None) -> Plan:
    try:
        program, class_path = java("kafka")
    except ServerMissing as exc:
        return mock_plan(home, tls, exc)
    port, controller_port = free_port(), free_port()
    return run_plan(home, program, class_path, port, properties(home, port, controller_port, tls), tls)


def plan_with_login(home: Path) -> Plan:
    """A server that asks for user and password (SASL)."""
    program, class_path = java("kafka")
    port, controller_port = free_port(), free_port()
    text = properties(home, port, controller_port, None).replace("PLAINTEXT://", "SASL_PLAINTEXT://")
    text = text.replace("PLAINTEXT:PLAINTEXT\n", "SASL_PLAINTEXT:SASL_PLAINTEXT\n")
    text = text.replace("listener.name=PLAINTEXT", "listener.name=SASL_PLAINTEXT")
    login = f'username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}"'
    modules, listener = "org.apache.kafka.common.security", "listener.name.sasl_plaintext"
    text += "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\nsasl.mechanism.inter.broker.protocol=PLAIN\n"
    text += f"{listener}.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required {login};\n"
    text += f"{listener}.scram-sha-256.sasl.jaas.config={modules}.scram.ScramLoginModule required;\n"
    return run_plan(home, program, class_path, port, text, None, login=True)


def run_plan(
    home: Path,
    program: str,
    class_path: str,
    port: int,
    text: str,
    tls: Certificates | None,
    login: bool = False,
) -> Plan:
    config = home / "server.properties"
    config.write_text(text)
    run = [program, *JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path]
    form = [*run, "kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER, "-c", str(config)]
    if login:
        form += ["--add-scram", f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"]
    done = subprocess.run(form, check=False, capture_output=True, text=True, env=clean_env(home))
    if done.returncode:
        raise ServerBroken(f"kafka storage format: {done.stdout}\n{done.stderr}")
    return Plan(
        argv=[run[0], "-Xmx384m", *run[1:], "kafka.Kafka", str(config)],
        url=f"kafka://{USER}:{PASSWORD}@127.0.0.1:{port}" if login else f"kafka://127.0.0.1:{port}",
        port=port,
        version=version_of("kafka", "kafka_2.13"),
        ready=partial(has_broker, port, tls, login),
    )


def properties(home: Path, port: int, controller_port: int, tls: Certificates | None) -> str:
    listener = "SSL" if tls else "PLAINTEXT"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"{listener}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"{listener}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{listener}:{listener}",
        "inter.broker.listener.name": listener,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "log.dirs": str(home / "data"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        # Tests may ask for short sessions, so that a killed consumer's share moves on soon.
        "group.min.session.timeout.ms": "500",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "200",
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.heartbeat.interval.ms": "500",
        # After a crash the controller lets the broker in again only when its old session is over.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        "num.network.threads": "2",
        "num.io.threads": "2",
        "log.cleaner.dedupe.buffer.size": "4194304",
    }
    if tls:
        lines |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(tls.bundle),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(tls.ca),
            "ssl.client.auth": "requested",
        }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def has_broker(port: int, tls: Certificates | None, login: bool = False) -> bool:
    """The port opens before the broker is let into its own cluster: ask for the cluster."""
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError:
        return talk(port, HELLO, b"\x00")
    options = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0, "error_cb": lambda _error: None}
    if tls:
        options |= {"security.protocol": "SSL", "ssl.ca.location": str(tls.ca)}
    if login:
        options |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        options |= {"sasl.username": USER, "sasl.password": PASSWORD}
    try:
        cluster = AdminClient(options).list_topics(timeout=2.0)
    except KafkaException:
        return False
    return bool(cluster.brokers)


def mock_plan(home: Path, tls: Certificates | None, missing: ServerMissing) -> Plan:
    """Good enough to produce and consume; it takes a new port at each start and forgets everything."""
    if tls or importlib.util.find_spec("confluent_kafka") is None:
        raise missing
    program = Path(__file__).resolve().parents[1] / "kafka_mock.py"
    address = home / "address"
    return Plan(
        argv=[sys.executable, str(program), str(address)],
        url="",
        url_file=address,
        port=0,
        version="librdkafka mock cluster",
        note="stands in for Kafka: no durability, no CreateTopics, aborted transactions are visible",
        durable=False,
        ready=address.exists,
    )
