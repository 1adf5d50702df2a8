"""How much a request asks for, told from its bytes before they become objects. Reads no socket.

A frame within the byte limit may still hold millions of empty items or headers; decoding them first and
counting afterwards would cost the memory and the time that the limits are there to save.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: MessagePack's markers for unsigned integers, texts and arrays that are followed by a length or a value.
_UINT: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_TEXT: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY: Final = {0xDC: 2, 0xDD: 4}


def tag_and_items(payload: bytes) -> tuple[int, int] | None:
    """Tag and number of elements of `[tag, queue, elements, …]`; None when it begins with something else."""
    try:
        tag, position = _uint(payload, 1)
        length, position = _length(payload, position, _TEXT, 0xA0, 0x1F)
        count, _ = _length(payload, position + length, _ARRAY, 0x90, 0x0F)
    except (IndexError, ValueError):
        return None
    return tag, count


def extra_bytes(payload: bytes, *, copies: bool) -> int:
    """Bytes of all headers and keys in a publish, or in a move (`copies`)."""
    try:
        if copies:
            return sum(len(copy.item.extra) for copy in _MOVE.decode(payload).items)
        return sum(len(item.extra) for item in _PUBLISH.decode(payload).items)
    except (msgspec.DecodeError, RecursionError):
        return 0  # malformed: whoever decodes it in full says what is wrong


class _MeasuredItem(msgspec.Struct, array_like=True):
    body: msgspec.Raw
    extra: msgspec.Raw = msgspec.Raw(b"\xc0")


class _MeasuredCopy(msgspec.Struct, array_like=True):
    token: msgspec.Raw
    key: msgspec.Raw
    item: _MeasuredItem


class _Items(msgspec.Struct, array_like=True):
    tag: msgspec.Raw
    queue: msgspec.Raw
    items: list[_MeasuredItem]


class _Copies(msgspec.Struct, array_like=True):
    tag: msgspec.Raw
    queue: msgspec.Raw
    items: list[_MeasuredCopy]


_PUBLISH: Final = msgspec.msgpack.Decoder(_Items)
_MOVE: Final = msgspec.msgpack.Decoder(_Copies)


def _uint(data: bytes, at: int) -> tuple[int, int]:
    marker = data[at]
    if marker < 0x80:
        return marker, at + 1
    size = _UINT.get(marker, 0)
    if not size or len(data) < at + 1 + size:
        raise ValueError
    return int.from_bytes(data[at + 1 : at + 1 + size]), at + 1 + size


def _length(data: bytes, at: int, markers: dict[int, int], fixed: int, mask: int) -> tuple[int, int]:
    marker = data[at]
    if marker & ~mask == fixed:
        return marker & mask, at + 1
    size = markers.get(marker, 0)
    if not size or len(data) < at + 1 + size:
        raise ValueError
    return int.from_bytes(data[at + 1 : at + 1 + size]), at + 1 + size
