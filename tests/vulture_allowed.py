# ruff: noqa
"""Names that vulture takes for dead code and that are not: `make check`. One line each, with who uses it.

What really is dead is removed, not listed here.
"""

_.__dir__  # Python: dir(shinar)
_.__getattr__  # Python: lazy imports of a package

_.connection_made  # asyncio.Protocol
_.connection_lost  # asyncio.Protocol
_.data_received  # asyncio.Protocol
_.pause_writing  # asyncio.Protocol

_.do_GET  # http.server
_.log_message  # http.server
_.daemon_threads  # socketserver

_.streamReader  # Spark's DataSource
_.streamWriter  # Spark's DataSource
_.pushFilters  # Spark's DataSourceReader
_.initialOffset  # Spark's DataSourceStreamReader
_.getDefaultReadLimit  # Spark's DataSourceStreamReader
_.prepareForTriggerAvailableNow  # Spark's DataSourceStreamReader
_.reportLatestOffset  # Spark's DataSourceStreamReader
_.batchId  # Spark's DataSourceStreamWriter: the name of a parameter

_.reply_to  # proton.Message
_.inferred  # proton.Message
_.distribution_mode  # proton.Terminus
_.peer_hostname  # proton.SSL
_.allow_insecure_mechs  # proton.SASL
_.idle_timeout  # proton.Transport
_.bytes_received  # pika's connection parameters

_.trace_id_hex  # a field of a NamedTuple, read by users and by the conformance adapter through _asdict
_.parent_span_id  # as above
_.nid  # a field of Urn, for users
_.sample_id  # a field of Proposal, printed with the others
_.delivered  # a field of the broker's totals, sent with the others
