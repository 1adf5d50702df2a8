"""Apache ActiveMQ Artemis in a small launcher; AMQP 1.0 and Core (JMS), security on, journal on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from servers.jars import JVM, java, version_of
from servers.process import Plan, ServerMissing, find_program, free_port, talk
from servers.tls import Certificates, talk_tls

USER = "shinar"
PASSWORD = "secret"
#: The header of AMQP's SASL layer; a server that is up answers with the same.
HELLO = b"AMQP\x03\x01\x00\x00"
LAUNCHER = Path(__file__).resolve().parents[1] / "ArtemisLauncher.java"

#: As `artemis create` writes it, but for sizes and directories. Queues under `fixed.` are not made on first
#: use, and those under `small.` hold 100 kB.
CONFIG = """<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>shinar-test</name>
    <persistence-enabled>true</persistence-enabled>
    <journal-type>NIO</journal-type>
    <journal-datasync>true</journal-datasync>
    <journal-min-files>2</journal-min-files>
    <paging-directory>{home}/paging</paging-directory>
    <bindings-directory>{home}/bindings</bindings-directory>
    <journal-directory>{home}/journal</journal-directory>
    <large-messages-directory>{home}/large</large-messages-directory>
    <global-max-size>64M</global-max-size>
    <max-disk-usage>99</max-disk-usage>
    <critical-analyzer>false</critical-analyzer>
    <jmx-management-enabled>false</jmx-management-enabled>
    <scheduled-thread-pool-max-size>2</scheduled-thread-pool-max-size>
    <thread-pool-max-size>8</thread-pool-max-size>
    <acceptors>
      <acceptor name="amqp">tcp://127.0.0.1:{port}?protocols=AMQP,CORE;amqpCredits=1000;amqpLowCredits=300{tls}</acceptor>
    </acceptors>
    <security-settings>
      <security-setting match="#">
        {permissions}
      </security-setting>
    </security-settings>
    <address-settings>
      <address-setting match="#">
        <dead-letter-address>DLQ</dead-letter-address>
        <expiry-address>ExpiryQueue</expiry-address>
        <redelivery-delay>0</redelivery-delay>
        <auto-create-queues>true</auto-create-queues>
        <auto-create-addresses>true</auto-create-addresses>
        <auto-delete-queues>false</auto-delete-queues>
        <auto-delete-addresses>false</auto-delete-addresses>
      </address-setting>
      <address-setting match="fixed.#">
        <auto-create-queues>false</auto-create-queues>
        <auto-create-addresses>false</auto-create-addresses>
      </address-setting>
      <address-setting match="small.#">
        <max-size-bytes>100000</max-size-bytes>
        <address-full-policy>FAIL</address-full-policy>
      </address-setting>
    </address-settings>
    <addresses>
      <address name="DLQ"><anycast><queue name="DLQ"/></anycast></address>
      <address name="ExpiryQueue"><anycast><queue name="ExpiryQueue"/></anycast></address>
    </addresses>
  </core>
</configuration>
"""
PERMISSIONS = (
    "createNonDurableQueue",
    "deleteNonDurableQueue",
    "createDurableQueue",
    "deleteDurableQueue",
    "createAddress",
    "deleteAddress",
    "consume",
    "browse",
    "send",
    "manage",
)


def plan(home: Path, tls: Certificates | None) -> Plan:
    program, class_path = java("artemis")
    if find_program("javac") is None:
        raise ServerMissing(
            "the launcher of artemis needs a JDK; run python tests/servers/install.py artemis"
        )
    port = free_port()
    secure = f";sslEnabled=true;keyStorePath={tls.bundle};keyStoreType=PEM" if tls else ""
    permissions = "\n        ".join(f'<permission type="{name}" roles="all"/>' for name in PERMISSIONS)
    config = home / "broker.xml"
    config.write_text(CONFIG.format(home=home, port=port, tls=secure, permissions=permissions))
    options = [*JVM, "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return Plan(
        argv=[program, *options, "-cp", class_path, str(LAUNCHER), str(config), USER, PASSWORD],
        url=f"artemis{'s' if tls else ''}://{USER}:{PASSWORD}@127.0.0.1:{port}",
        port=port,
        version=version_of("artemis", "artemis-server"),
        ready=partial(talk_tls, port, tls, HELLO, HELLO) if tls else partial(talk, port, HELLO, HELLO),
    )
