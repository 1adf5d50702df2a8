"""`file://`: a broker that Shinar does not bring. This row is all that Shinar is told about it."""

from shinar.brokers.registry import Row

ROW = Row(
    module="file_broker.broker",
    label="files",
    example="file:///var/spool/shinar?queue=orders",
    path="file",
)
