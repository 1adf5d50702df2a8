"""ElasticMQ, a server that speaks the SQS protocol. A stand-in: SQS itself runs only at its vendor."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

from servers.jars import JVM, java, version_of
from servers.process import Plan, ServerMissing, free_port
from servers.tls import Certificates

#: Queues and messages are kept in a database file, so a restart keeps them. Benches set TEST_SERVER_MEMORY:
#: they want the server as it is shipped, and the file costs it three times the work.
KEEP = "false" if os.environ.get("TEST_SERVER_MEMORY") else "true"
CONFIG = """
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
messages-storage {{ enabled = {keep}, uri = {uri} }}
aws {{ region = "eu-west-1", accountId = "000000000000" }}
pekko.loglevel = "WARNING"
"""


def plan(home: Path, tls: Certificates | None) -> Plan:
    if tls:
        raise ServerMissing("ElasticMQ has no TLS of its own")
    program, class_path = java("elasticmq")
    port = free_port()
    uri = json.dumps(f"jdbc:h2:file:{home / 'messages'}")
    (home / "elasticmq.conf").write_text(CONFIG.format(port=port, uri=uri, keep=KEEP))
    options = [*JVM, "-Xmx1g", f"-Dconfig.file={home / 'elasticmq.conf'}"]
    return Plan(
        argv=[program, *options, "-cp", class_path, "org.elasticmq.server.Main"],
        url=f"sqs://eu-west-1?endpoint=http://127.0.0.1:{port}&access_key=x&secret_key=y",
        port=port,
        version=f"ElasticMQ {version_of('elasticmq', 'elasticmq-server_2.13')}",
        note="stands in for SQS",
        ready=partial(answers, f"http://127.0.0.1:{port}/?Action=ListQueues"),
    )


def answers(address: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=2.0) as reply:
            return reply.status == 200
    except urllib.error.HTTPError:
        # It is up, whatever it thinks of the question.
        return True
