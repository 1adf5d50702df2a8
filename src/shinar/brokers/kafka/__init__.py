"""Kafka as a broker."""
