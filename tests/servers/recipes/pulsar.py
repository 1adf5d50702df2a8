"""Apache Pulsar standalone (broker and bookie in one JVM); where its jars are not at hand, pulsar-lite."""

from __future__ import annotations

import base64
import hmac
import importlib.metadata
import importlib.util
import json
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

from servers.jars import JVM, java, version_of
from servers.process import Plan, ServerMissing, free_port, listens
from servers.tls import Certificates

#: What Pulsar's own start script opens to itself.
OPENED = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
)
DRIVERS = "org.apache.pulsar.metadata.bookkeeper"
LOGGING = """<Configuration status="WARN">
  <Appenders><Console name="out"><PatternLayout pattern="%d{HH:mm:ss} %p %c{1} %m%n"/></Console></Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


#: Of `plan_with_login`: the key the server checks tokens with.
KEY = b"0123456789abcdef0123456789abcdef"


def plan(home: Path, tls: Certificates | None) -> Plan:
    try:
        program, class_path = java("pulsar")
    except ServerMissing as exc:
        return lite_plan(home, tls, exc)
    return run_plan(home, program, class_path, tls)


def plan_with_login(home: Path) -> Plan:
    """A server that asks for a token (JWT, HS256 by `KEY`)."""
    program, class_path = java("pulsar")
    return run_plan(home, program, class_path, None, login=True)


def token(role: str, key: bytes = KEY) -> str:
    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    signed = f"{part(json.dumps({'alg': 'HS256'}).encode())}.{part(json.dumps({'sub': role}).encode())}"
    return f"{signed}.{part(hmac.digest(key, signed.encode(), 'sha256'))}"


def run_plan(
    home: Path, program: str, class_path: str, tls: Certificates | None, login: bool = False
) -> Plan:
    port, web_port, bookie_port, tls_port = free_port(), free_port(), free_port(), free_port()
    text = properties(port, web_port, tls_port, tls)
    if login:
        text += login_properties()
    (home / "standalone.conf").write_text(text)
    (home / "log4j2.xml").write_text(LOGGING)
    options = [*JVM, "-Xms128m", "-Xmx512m", "-XX:MaxDirectMemorySize=384m"]
    options += [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
    options += [
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dpulsar.allocator.pooled=true",
        f"-Dbookkeeper.metadata.bookie.drivers={DRIVERS}.PulsarMetadataBookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={DRIVERS}.PulsarMetadataClientDriver",
        f"-Dlog4j2.configurationFile={home / 'log4j2.xml'}",
    ]
    arguments = ["--config", str(home / "standalone.conf"), "--no-functions-worker", "--no-stream-storage"]
    arguments += ["--advertised-address", "127.0.0.1", "--bookkeeper-port", str(bookie_port)]
    arguments += ["--metadata-dir", str(home / "metadata"), "--bookkeeper-dir", str(home / "bookkeeper")]
    return Plan(
        argv=[program, *options, "-cp", class_path, "org.apache.pulsar.PulsarStandaloneStarter", *arguments],
        url=f"pulsar+ssl://127.0.0.1:{tls_port}" if tls else f"pulsar://127.0.0.1:{port}",
        port=tls_port if tls else port,
        version=version_of("pulsar", "pulsar-broker"),
        ready=partial(has_namespace, web_port, token("admin") if login else ""),
    )


def properties(port: int, web_port: int, tls_port: int, tls: Certificates | None) -> str:
    lines = {
        "clusterName": "standalone",
        "brokerServicePort": port,
        "webServicePort": web_port,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "managedLedgerCacheSizeMB": 32,
        "numIOThreads": 2,
        "numHttpServerThreads": 8,
        "numOrderedExecutorThreads": 2,
        "numExecutorThreadPoolSize": 2,
        "transactionCoordinatorEnabled": "false",
        "loadBalancerEnabled": "false",
        "allowAutoTopicCreation": "true",
        "allowAutoTopicCreationType": "non-partitioned",
        # Delays are kept in steps of this; the default is a second.
        "delayedDeliveryTickTimeMillis": 100,
        "brokerShutdownTimeoutMs": 2000,
        "diskUsageThreshold": 0.99,
        "diskUsageWarnThreshold": 0.98,
        "journalMaxGroupWaitMSec": 1,
        "dbStorage_writeCacheMaxSizeMb": 16,
        "dbStorage_readAheadCacheMaxSizeMb": 8,
        "dbStorage_rocksDB_blockCacheSize": 8388608,
        # The bookie, for whom bindAddress does not count.
        "listeningInterface": "lo",
        "allowLoopback": "true",
        # Despite its name: only then is --bookkeeper-port used, and the bookie keeps its address.
        "allowEphemeralPorts": "true",
        "httpServerEnabled": "false",
    }
    if tls:
        lines |= {
            "brokerServicePortTls": tls_port,
            "tlsCertificateFilePath": tls.certificate,
            "tlsKeyFilePath": tls.key,
            "tlsTrustCertsFilePath": tls.ca,
        }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def login_properties() -> str:
    lines = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(KEY).decode()}",
        "superUserRoles": "admin",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token('admin')}",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def has_namespace(web_port: int, token: str = "") -> bool:
    """The default namespace is made last."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    address = f"http://127.0.0.1:{web_port}/admin/v2/namespaces/public"
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with opener.open(urllib.request.Request(address, headers=headers), timeout=5.0) as reply:
            return "public/default" in json.load(reply)
    except urllib.error.HTTPError:
        return False


def lite_plan(home: Path, tls: Certificates | None, missing: ServerMissing) -> Plan:
    spec = importlib.util.find_spec("pulsar_lite")
    if tls or spec is None or not spec.submodule_search_locations:
        raise missing
    program = Path(spec.submodule_search_locations[0]) / "bin" / "pulsar-lite"
    port = free_port()
    listen = ["--addr", f"127.0.0.1:{port}", "--db-path", str(home / "db"), "--log-level", "warn"]
    return Plan(
        argv=[str(program), *listen],
        url=f"pulsar://127.0.0.1:{port}",
        port=port,
        version=f"pulsar-lite {importlib.metadata.version('pulsar-lite')}",
        note="stands in for Pulsar: deliver_after is ignored, no admin interface",
        ready=partial(listens, port),
    )
