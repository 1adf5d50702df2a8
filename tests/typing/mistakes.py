"""Mistakes a type checker must find. A line with a mistake ends in `# wrong`; no other line is wrong."""

from pyspark.sql import SparkSession

from shinar import (
    Handlers,
    Limits,
    Message,
    Pipeline,
    Policy,
    Producer,
    Redrive,
    Retry,
    Worker,
    decode,
    encode,
    judge,
)
from shinar import Prodcuer  # wrong
from shinar.envelope import uuid4  # wrong

handlers = Handlers()
producer = Producer("memory://x/q")

producer.send("urn:x", {"a": 1}, queu="orders")  # wrong
producer.send("urn:x", {"a": 1}, delay_s="5")  # wrong
producer.send("urn:x", [1, 2])  # wrong
Producer(5)  # wrong
Producer("memory://x/q", stric=True)  # wrong
Worker("memory://x/q", handlers, limits=Limits(until_emtpy=True))  # wrong
Worker("memory://x/q", handlers, queu="orders")  # wrong
Policy(max_attempts="3")  # wrong
Retry(delay_s="soon")  # wrong
decode("text")  # wrong
encode({"job": "urn:x"})  # wrong
number: int = judge(b"{}").pointer  # wrong


@handlers.handler(5)  # wrong
def handle(message: Message) -> None:
    message.urn = "urn:y"  # wrong
    print(message.dta)  # wrong


def on_spark(spark: SparkSession) -> None:
    Pipeline(spark, lake="lake", queu="orders")  # wrong
    Redrive("redis://h/orders.dlq", queu="orders")  # wrong
