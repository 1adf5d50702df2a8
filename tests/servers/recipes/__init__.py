"""One module per server, each with `plan(home, tls) -> Plan`; raises ServerMissing when not installed."""
