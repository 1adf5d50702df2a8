"""Payloads as typed columns."""
