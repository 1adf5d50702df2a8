"""docs/phpmq.md is a specification: every frame on it is decoded here, and encoded to the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from shinar.phpmq.protocol import Decoder, Extended, Limits, Message, Packet, Type, encode
from shinar.phpmq.protocol import extension as ext
from shinar.phpmq.protocol.wire import OPTIONAL, REQUIRED

PAGE = Path(__file__).parents[3] / "docs" / "phpmq.md"
TEXT = PAGE.read_text("utf-8")
BLOCKS = re.findall(r"^```(frame|plain)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
FRAMES = [body.splitlines() for kind, body in BLOCKS if kind == "frame"]
PLAIN = [body.splitlines() for kind, body in BLOCKS if kind == "plain"]


def decoded(wire: bytes) -> Message:
    decoder = Decoder(Limits())
    (message,) = decoder.feed(wire)
    assert decoder.violation is None
    return message


@pytest.mark.parametrize("lines", PLAIN, ids=lambda lines: lines[0])
def test_plain_examples(lines: list[str]) -> None:
    wire = "".join(lines[1:]).encode()
    message = decoded(wire)
    assert encode(message) == wire
    assert type(message).__name__.lower() in lines[0].replace("-", "").replace(" ", "")


@pytest.mark.parametrize("lines", FRAMES, ids=lambda lines: lines[0][:40])
def test_extension_examples(lines: list[str]) -> None:
    shown, header, *payload = lines
    wire = header.encode() + bytes.fromhex("".join(payload))
    message = decoded(wire)
    assert isinstance(message, Extended)
    if message.type == Type.REPLY:
        assert shown == f"Reply {msgspec.msgpack.decode(message.payload)!r}"
        ext.unpack(message.type, message.payload)
    else:
        value = ext.unpack(message.type, message.payload)
        assert repr(value) == shown
        assert ext.pack(value) == wire


def test_every_extension_message_has_an_example_and_a_row() -> None:
    shown = {lines[0].partition("(")[0].partition(" ")[0] for lines in FRAMES}
    assert {kind.__name__ for kind in ext._TYPES} | {"Reply"} == shown
    for kind, number in ext._TYPES.items():
        names = [
            name if default is msgspec.NODEFAULT else f"{name} = {_shown(default)}"
            for name, default in _fields(kind)
        ]
        assert f"| {number:03d} | {', '.join(names)} |" in TEXT, kind


def _fields(kind: type) -> list[tuple[str, object]]:
    found = []
    for field in msgspec.structs.fields(kind):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append((field.name, default))
    return found


def _shown(value: object) -> str:
    return {"''": '""', "True": "true", "False": "false"}.get(repr(value), repr(value))


def test_the_tables_of_part_one_are_the_tables_of_the_code() -> None:
    names = {Packet.QUEUE: "queue", Packet.CONTENT: "content", Packet.ID: "id", Packet.COUNT: "count"}
    for number in (number for number in Type if number < 100):
        packets = ", ".join(f"{packet:02d} {names[Packet(packet)]}" for packet in sorted(REQUIRED[number]))
        optional = " 05 TTL" if OPTIONAL.get(number) else ""
        assert re.search(rf"\| {number:03d} \| \w+ \| {packets} \|{optional} \|", TEXT), number
