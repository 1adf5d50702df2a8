"""Brokers: the contract, and the registry that finds one by its URL."""

from shinar.brokers.contract import Broker, Delivery, Depth, Facts, Lapsed, Outgoing
from shinar.brokers.registry import connect, parse, traits
from shinar.brokers.url import BrokerUrl

__all__ = [
    "Broker",
    "BrokerUrl",
    "Delivery",
    "Depth",
    "Facts",
    "Lapsed",
    "Outgoing",
    "connect",
    "parse",
    "traits",
]
