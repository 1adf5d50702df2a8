"""Payload schemas per URN (registry.json), and encryption of the fields they mark as personal."""

from shinar.schemas.cipher import AesGcm, BindingCipher, Cipher, KeyRing
from shinar.schemas.gdpr import protect, sensitive, unprotect
from shinar.schemas.registry import Entry, Registry
from shinar.schemas.validate import conforms

__all__ = [
    "AesGcm",
    "BindingCipher",
    "Cipher",
    "Entry",
    "KeyRing",
    "Registry",
    "conforms",
    "protect",
    "sensitive",
    "unprotect",
]
