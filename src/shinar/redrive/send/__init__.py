"""Sending dead letters back, once."""
