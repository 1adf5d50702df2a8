"""RabbitMQ on its own node name, port mapper and data, beside any system-wide RabbitMQ."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from servers.process import Plan, ServerMissing, find_program, free_port, talk
from servers.tls import Certificates, talk_tls

#: The protocol header of AMQP 0-9-1; the server answers with a method frame (type 1) of channel 0.
HELLO = b"AMQP\x00\x00\x09\x01"
ANSWER = b"\x01\x00\x00"


def plan(home: Path, tls: Certificates | None) -> Plan:
    script = find_script()
    epmd = find_program("epmd")
    if script is None or epmd is None:
        raise ServerMissing("rabbitmq-server is not installed; run python tests/servers/install.py rabbitmq")
    port, dist_port, epmd_port = free_port(), free_port(), free_port()
    write_config(home, port, tls)
    return Plan(
        argv=[str(script)],
        # Not as a daemon of its own: the port mapper must end with the server.
        companion=[epmd, "-port", str(epmd_port), "-address", "127.0.0.1"],
        env={
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"shinar-{port}@localhost",
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(home / "no-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            # Busy waiting of the schedulers costs other tests their cores.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
            # The script then replaces itself by the Erlang VM, so that our signals reach the server.
            "RUNNING_UNDER_SYSTEMD": "1",
        },
        url=f"amqp{'s' if tls else ''}://guest:guest@127.0.0.1:{port}",
        port=port,
        version=script.parent.parent.name.rpartition("-")[2],
        ready=partial(talk_tls, port, tls, HELLO, ANSWER) if tls else partial(talk, port, HELLO, ANSWER),
    )


def find_script() -> Path | None:
    """The server's own script, not the packager's: that one changes user and directories."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return found[-1] if found else None


def write_config(home: Path, port: int, tls: Certificates | None) -> None:
    lines = ["log.console = true", "log.console.level = warning", "log.file = false"]
    lines += ["default_user = guest", "default_pass = guest", "disk_free_limit.absolute = 50MB"]
    if tls:
        lines += ["listeners.tcp = none", f"listeners.ssl.1 = 127.0.0.1:{port}"]
        lines += [f"ssl_options.cacertfile = {tls.ca}", f"ssl_options.certfile = {tls.certificate}"]
        lines += [f"ssl_options.keyfile = {tls.key}", "ssl_options.verify = verify_peer"]
        lines += ["ssl_options.fail_if_no_peer_cert = false"]
    else:
        lines += [f"listeners.tcp.1 = 127.0.0.1:{port}"]
    (home / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    (home / "enabled_plugins").write_text("[].\n")
