"""Pulsar as a broker."""
