"""Field encryption: every marked value, wherever the mark stands, and nothing else."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shinar.errors import ConfigError, ContractError
from shinar.schemas import AesGcm, Cipher, KeyRing, Registry, protect, sensitive, unprotect

KEY = bytes(range(32))
M = {"x-gdpr-sensitive": True}


def obj(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TREE = {
    "definitions": {"node": {"properties": {"name": M, "kids": {"items": {"$ref": "#/definitions/node"}}}}},
    "properties": {"tree": {"$ref": "#/definitions/node"}},
}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "leaf": (obj(email=M, id={}), {"email": "a@b", "id": 1}, ["/data/email"]),
    "category": (obj(email={"x-gdpr-sensitive": "contact"}), {"email": "a@b"}, ["/data/email"]),
    "absent": (obj(email=M), {"id": 1}, []),
    "null": (obj(email=M), {"email": None}, ["/data/email"]),
    "dotted name": (obj(**{"full.name": M}), {"full.name": "A", "full": {"name": "B"}}, ["/data/full.name"]),
    "slash in name": (obj(**{"a/b": M}), {"a/b": 1}, ["/data/a~1b"]),
    "nested": (obj(p=obj(q=obj(r=M))), {"p": {"q": {"r": 1, "s": 2}}}, ["/data/p/q/r"]),
    "items": (
        obj(a={"items": obj(l=M)}),
        {"a": [{"l": 1}, {"m": 2}, {"l": 3}]},
        ["/data/a/0/l", "/data/a/2/l"],
    ),
    "array in array": (obj(a={"items": {"items": M}}), {"a": [[1], [], [2]]}, ["/data/a/0/0", "/data/a/2/0"]),
    "container": (obj(p={**M, "properties": {"q": M}}), {"p": {"q": [1, {"r": None}]}}, ["/data/p"]),
    "tuple items": (
        obj(a={"items": [{}, M], "additionalItems": M}),
        {"a": [1, 2, 3]},
        ["/data/a/1", "/data/a/2"],
    ),
    "allOf": ({"allOf": [obj(a=M), {"allOf": [obj(b=M)]}]}, {"a": 1, "b": 2, "c": 3}, ["/data/a", "/data/b"]),
    "anyOf in property": (obj(p={"anyOf": [{"type": "null"}, obj(q=M)]}), {"p": {"q": 1}}, ["/data/p/q"]),
    "then": ({"if": {}, "then": obj(a=M), "else": obj(b=M)}, {"a": 1, "b": 1}, ["/data/a", "/data/b"]),
    "dependencies": ({"dependencies": {"x": obj(a=M), "y": ["z"]}}, {"a": 1}, ["/data/a"]),
    "pattern": ({"patternProperties": {"^s_": M}}, {"s_a": 1, "t_a": 2}, ["/data/s_a"]),
    "additional": ({"properties": {"a": {}}, "additionalProperties": M}, {"a": 1, "b": 2}, ["/data/b"]),
    "ref": ({**obj(a={"$ref": "#/definitions/p"}), "definitions": {"p": M}}, {"a": 1}, ["/data/a"]),
    "mark beside ref": (
        {**obj(a={"$ref": "#/definitions/p", **M}), "definitions": {"p": {}}},
        {"a": 1},
        ["/data/a"],
    ),
    "recursive": (
        TREE,
        {"tree": {"name": "a", "kids": [{"name": "b", "kids": [{"name": "c"}]}]}},
        ["/data/tree/name", "/data/tree/kids/0/name", "/data/tree/kids/0/kids/0/name"],
    ),
    "anchor by $id": (
        {**obj(a={"$ref": "#person"}), "definitions": {"p": {"$id": "#person", **obj(name=M)}}},
        {"a": {"name": "A", "id": 1}},
        ["/data/a/name"],
    ),
    "anchor by $anchor": (
        {**obj(a={"$ref": "#person"}), "$defs": {"p": {"$anchor": "person", **M}}},
        {"a": 1},
        ["/data/a"],
    ),
    "anchor below another $id": (
        {
            "$id": "https://shop.example/order.json",
            **obj(a={"$ref": "person.json#name"}, b={"$ref": "#name"}),
            "definitions": {
                "p": {"$id": "person.json", "definitions": {"n": {"$id": "#name", **M}}},
                "n": {"$id": "#name"},
            },
        },
        {"a": 1, "b": 2},
        ["/data/a"],
    ),
    "pointer below another $id": (
        {
            "$id": "urn:example:order",
            **obj(a={"$ref": "urn:example:person"}),
            "definitions": {
                "q": {},
                "p": {
                    "$id": "urn:example:person",
                    **obj(name={"$ref": "#/definitions/q"}),
                    "definitions": {"q": M},
                },
            },
        },
        {"a": {"name": 1}},
        ["/data/a/name"],
    ),
    "escaped pointer": (
        {**obj(a={"$ref": "#/definitions/a%20~1b"}), "definitions": {"a /b": M}},
        {"a": 1},
        ["/data/a"],
    ),
    "unknown container": (
        {**obj(a={"$ref": "#/components/p"}), "components": {"p": obj(q={"$ref": "#/components/q"}), "q": M}},
        {"a": {"q": 1}},
        ["/data/a/q"],
    ),
    "later drafts' keywords": (
        {
            "dependentSchemas": {"x": obj(a=M)},
            "properties": {"l": {"prefixItems": [M]}},
            "unevaluatedProperties": obj(z=M),
        },
        {"a": 1, "l": [1, 2], "u": {"z": 3}},
        ["/data/a", "/data/l/0", "/data/u/z"],
    ),
    "not": ({"not": obj(a=M)}, {"a": 1}, ["/data/a"]),
    "a property called like the mark": (obj(**{"x-gdpr-sensitive": {}}), {"x-gdpr-sensitive": "x"}, []),
    "data called like the mark": (
        obj(a={"enum": [{"x-gdpr-sensitive": 1}]}),
        {"a": {"x-gdpr-sensitive": 1}},
        [],
    ),
    "ref to itself": ({"allOf": [{"$ref": "#"}], "properties": {"a": M}}, {"a": 1}, ["/data/a"]),
    "shape differs": (obj(p=obj(q=M), a={"items": M}), {"p": [1], "a": {"b": 1}}, []),
}


@pytest.fixture(scope="module")
def cipher() -> AesGcm:
    return AesGcm(KEY)


def at(data: Any, pointer: str) -> Any:
    for part in pointer.split("/")[2:]:
        part = part.replace("~1", "/").replace("~0", "~")
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


@pytest.mark.parametrize("name", CASES)
def test_exactly_the_marked_values_are_encrypted(name: str, cipher: AesGcm) -> None:
    schema, data, marked = CASES[name]
    before = copy.deepcopy(data)
    hidden = protect(schema, data, cipher)
    assert data == before, "the caller's payload is left alone"
    assert sorted(sensitive(schema, data)) == sorted(marked)
    for pointer in marked:
        text = at(hidden, pointer)
        assert isinstance(text, str)
        assert json.loads(cipher.decrypt(text)) == at(data, pointer)
    assert unprotect(schema, hidden, cipher) == data
    # Put the clear values back: nothing else may differ.
    restored = json.dumps(hidden)
    for pointer in marked:
        restored = restored.replace(json.dumps(at(hidden, pointer)), json.dumps(at(data, pointer)))
    assert json.loads(restored) == data


def test_a_mark_on_the_root_hides_the_whole_payload(cipher: AesGcm) -> None:
    schema = {**obj(a={}), **M}
    hidden = protect(schema, {"a": "SECRET", "b": [1]}, cipher)
    assert list(hidden) == ["x-gdpr-protected"]
    assert "SECRET" not in json.dumps(hidden)
    assert unprotect(schema, hidden, cipher) == {"a": "SECRET", "b": [1]}
    assert unprotect(schema, {"a": 1}, cipher) == {"a": 1}, "a payload from before the mark"


def test_false_is_not_a_mark(cipher: AesGcm) -> None:
    assert protect(obj(a={"x-gdpr-sensitive": False}), {"a": "x"}, cipher) == {"a": "x"}


@pytest.mark.parametrize("mark", ["", " ", None, 1, 0, [], {}, ["contact"], {"category": "contact"}])
def test_a_mark_of_another_type_is_refused(mark: object, cipher: AesGcm) -> None:
    with pytest.raises(ConfigError, match="must be true, false or the name of a category"):
        protect(obj(a={"x-gdpr-sensitive": mark}), {"a": "x"}, cipher)
    with pytest.raises(ConfigError, match="must be true"):
        Registry.of({"urn:x": obj(a={"x-gdpr-sensitive": mark})})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (obj(a={"$ref": "other.json#/x"}), "leads out of the schema"),
        (obj(a={"$ref": "#/definitions/none"}), "does not lead to a schema"),
        (obj(a={"$ref": "#nowhere"}), "does not lead to a schema"),
        ({**obj(a={"$ref": "#x/definitions/p"}), "definitions": {"p": {}}}, "does not lead to a schema"),
        ({**obj(a={"$ref": "#/required"}), "required": ["a"]}, "does not lead to a schema"),
        (obj(a={"$ref": 5}), "must be a string"),
        (obj(a={"$dynamicRef": "#x"}), "not supported"),
        (obj(a={"$id": "#x"}, b={"$id": "#x"}), "two subschemas"),
        (obj(a={"x-shape": {"x-gdpr-sensitive": True}}), "at /properties/a/x-shape is not in a subschema"),
        (obj(a={"propertyNames": M}), "names of members cannot be encrypted"),
        (
            {**obj(a={"propertyNames": {"$ref": "#/definitions/p"}}), "definitions": {"p": M}},
            "names of members",
        ),
        ({"patternProperties": {"(": M}}, "not a regular expression"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", **obj(a=M)}, "draft-07"),
    ],
)
def test_a_schema_that_could_hide_a_mark_is_refused(
    schema: dict[str, Any], text: str, cipher: AesGcm
) -> None:
    for call in (lambda: protect(schema, {}, cipher), lambda: sensitive(schema, {})):
        with pytest.raises(ConfigError, match=text):
            call()


def test_a_registry_entry_will_do(cipher: AesGcm) -> None:
    registry = Registry.of({"urn:x": obj(email=M)})
    entry = registry.get("urn:x")
    assert entry is not None
    hidden = protect(entry, {"email": "a@b"}, cipher)
    assert "a@b" not in str(hidden)
    assert unprotect(entry, hidden, cipher) == {"email": "a@b"}
    for wrong in (registry.get("urn:unknown"), registry, "urn:x", True):
        with pytest.raises(TypeError, match="Entry or a JSON Schema"):
            protect(wrong, {"email": "a@b"}, cipher)  # type: ignore[arg-type]


def test_marks_in_another_file_of_the_registry_are_found(tmp_path: Path, cipher: AesGcm) -> None:
    (tmp_path / "registry.json").write_text('{"schemas": [{"urn": "urn:x", "schema": "orders/x.json"}]}')
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "x.json").write_text('{"properties": {"p": {"$ref": "../common.json#person"}}}')
    person = {"$id": "#person", "properties": {"name": {"$ref": "#/definitions/text"}}}
    (tmp_path / "common.json").write_text(json.dumps({"definitions": {"person": person, "text": M}}))
    entry = Registry.load(tmp_path / "registry.json").get("urn:x")
    assert entry is not None
    assert sensitive(entry, {"p": {"name": "A", "id": 1}}) == ["/data/p/name"]
    (tmp_path / "common.json").write_text(json.dumps({"definitions": {"person": person, "text": {}}}))
    plain = Registry.load(tmp_path / "registry.json").get("urn:x")
    assert plain is not None
    assert protect(plain, {"p": {"name": "A"}}, cipher) == {"p": {"name": "A"}}
    person["x-gdpr-sensitive"] = 1
    (tmp_path / "common.json").write_text(json.dumps({"definitions": {"person": person, "text": M}}))
    with pytest.raises(ConfigError, match=r"must be true.*x\.json"):
        Registry.load(tmp_path / "registry.json")


@pytest.mark.parametrize("kind", [set, frozenset, tuple])
def test_whatever_leaves_as_an_array_is_looked_into(kind: Any, cipher: AesGcm) -> None:
    hidden = protect(obj(a={"items": M}), {"a": kind(["SECRET"])}, cipher)
    assert "SECRET" not in str(hidden)
    assert unprotect(obj(a={"items": M}), hidden, cipher) == {"a": ["SECRET"]}


def test_what_cannot_be_looked_into_is_refused(cipher: AesGcm) -> None:
    with pytest.raises(ContractError, match="/data/p: object is not JSON"):
        protect(obj(p=obj(q=M)), {"p": object()}, cipher)
    with pytest.raises(ContractError, match="/data/p: the name 5 is not a string"):
        protect(obj(p=obj(q=M)), {"p": {5: "x"}}, cipher)
    deep: dict[str, Any] = {"name": "x"}
    for _ in range(3000):
        deep = {"kids": [deep]}
    with pytest.raises(ContractError, match="too deep"):
        protect(TREE, {"tree": deep}, cipher)


def test_a_bound_text_opens_only_in_its_field_of_its_message(cipher: AesGcm) -> None:
    schema = obj(a=M, b=M, l={"items": M})
    for ring in (cipher, KeyRing({"k": KEY}, "k")):
        hidden = protect(schema, {"a": "A", "b": "B", "l": [1, 2]}, ring, message_id="id-1")
        assert hidden["a"].startswith("shinar-v2:")
        assert unprotect(schema, hidden, ring, message_id="id-1") == {"a": "A", "b": "B", "l": [1, 2]}
        swapped = {"a": hidden["b"], "b": hidden["a"]}
        for wrong, message_id in ((swapped, "id-1"), (hidden, "id-2"), ({"l": hidden["l"][::-1]}, "id-1")):
            with pytest.raises(ContractError, match="for this field of this message"):
                unprotect(schema, wrong, ring, message_id=message_id)
        with pytest.raises(ContractError, match="pass message_id"):
            unprotect(schema, hidden, ring)
    whole = protect({**schema, **M}, {"a": 1}, cipher, message_id="id-1")
    assert unprotect({**schema, **M}, whole, cipher, message_id="id-1") == {"a": 1}


def test_texts_from_before_binding_open_unless_refused(cipher: AesGcm) -> None:
    old = protect(obj(a=M), {"a": "A"}, cipher)
    assert unprotect(obj(a=M), old, cipher, message_id="id-1") == {"a": "A"}
    with pytest.raises(ContractError, match=r"/data/a: .*not bound to its message"):
        unprotect(obj(a=M), old, cipher, message_id="id-1", allow_unbound=False)


def test_binding_needs_an_id_and_a_cipher_that_can(cipher: AesGcm) -> None:
    class Plain:
        def encrypt(self, plaintext: bytes) -> str:
            return plaintext.hex()

        def decrypt(self, text: str) -> bytes:
            return bytes.fromhex(text)

    with pytest.raises(ConfigError, match="`seal` and `open`"):
        protect(obj(a=M), {"a": 1}, Plain(), message_id="id-1")
    with pytest.raises(ContractError, match="without an id"):
        protect(obj(a=M), {"a": 1}, cipher, message_id="")
    assert unprotect(obj(a=M), protect(obj(a=M), {"a": 1}, Plain()), Plain()) == {"a": 1}
    with pytest.raises(ConfigError, match="cannot be a key id"):
        KeyRing({"shinar-v2": KEY}, "shinar-v2")


def test_values_that_were_never_encrypted_stay(cipher: AesGcm) -> None:
    assert unprotect(obj(a=M), {"a": 7}, cipher) == {"a": 7}


@pytest.mark.parametrize("text", ["SECRET", "", "AAAA", "!!", base64.b64encode(b"SECRET" * 9).decode()])
def test_what_does_not_open_names_the_place_only(text: str, cipher: AesGcm) -> None:
    with pytest.raises(ContractError, match="cannot be decrypted") as caught:
        unprotect(obj(p=obj(q=M)), {"p": {"q": text}}, cipher)
    assert caught.value.pointer == "/data/p/q"
    assert "SECRET" not in str(caught.value)


def test_another_key_does_not_open_it(cipher: AesGcm) -> None:
    hidden = protect(obj(a=M), {"a": "x"}, cipher)
    with pytest.raises(ContractError, match="/data/a: cannot be decrypted: not encrypted with this key"):
        unprotect(obj(a=M), hidden, AesGcm(bytes(32)))


def test_a_changed_text_does_not_open(cipher: AesGcm) -> None:
    raw = bytearray(base64.b64decode(cipher.encrypt(b'"x"')))
    raw[-1] ^= 1
    with pytest.raises(ContractError, match="cannot be decrypted"):
        unprotect(obj(a=M), {"a": base64.b64encode(raw).decode()}, cipher)


def test_what_is_inside_must_be_json(cipher: AesGcm) -> None:
    with pytest.raises(ContractError, match="is not JSON"):
        unprotect(obj(a=M), {"a": cipher.encrypt(b"{")}, cipher)
    with pytest.raises(ContractError, match="payload is not an object"):
        unprotect(M, {"x-gdpr-protected": cipher.encrypt(b"[]")}, cipher)


def test_what_is_no_json_is_refused_by_its_place(cipher: AesGcm) -> None:
    with pytest.raises(ContractError, match="/data/a: cannot be written as JSON"):
        protect(obj(a=M), {"a": "\ud800"}, cipher)


def test_the_wire_form_is_nonce_ciphertext_tag_in_base64(cipher: AesGcm) -> None:
    from cryptography.hazmat.primitives.ciphers import aead

    raw = base64.b64decode(cipher.encrypt(b'"x"'))
    assert len(raw) == 12 + 3 + 16
    assert aead.AESGCM(KEY).decrypt(raw[:12], raw[12:], None) == b'"x"'
    assert cipher.encrypt(b'"x"') != cipher.encrypt(b'"x"')
    assert isinstance(cipher, Cipher)


def test_keys_rotate() -> None:
    old = KeyRing({"2025": KEY}, "2025")
    new = KeyRing({"2025": KEY, "2026": bytes(32)}, "2026", unnamed="2025")
    schema = obj(a=M)
    assert protect(schema, {"a": 1}, old)["a"].startswith("2025:")
    assert unprotect(schema, protect(schema, {"a": 1}, old), new) == {"a": 1}
    assert unprotect(schema, protect(schema, {"a": 1}, AesGcm(KEY)), new) == {"a": 1}
    with pytest.raises(ContractError, match="a key that is not in the ring"):
        unprotect(schema, protect(schema, {"a": 1}, new), old)
    with pytest.raises(ContractError, match="a key that is not in the ring"):
        unprotect(schema, protect(schema, {"a": 1}, AesGcm(KEY)), old)


def test_wrong_keys_are_named_and_never_shown() -> None:
    with pytest.raises(ConfigError, match="needs a key of 32 bytes, not 5"):
        AesGcm(b"short")
    with pytest.raises(ConfigError, match="has no key 'b'"):
        KeyRing({"a": KEY}, "b")
    with pytest.raises(ConfigError, match="cannot be a key id"):
        KeyRing({"a:b": KEY}, "a:b")
    assert "\\x01" not in repr(AesGcm(KEY)) + repr(KeyRing({"a": KEY}, "a"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(alphabet=st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.[]/", max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)
MARKS = st.recursive(
    st.sampled_from([{}, M, {"x-gdpr-sensitive": "c"}, {"$ref": "#"}]),
    lambda inner: st.one_of(
        st.dictionaries(st.text("ab.[]/", max_size=3), inner, max_size=3).map(lambda p: {"properties": p}),
        inner.map(lambda i: {"items": i}),
        st.lists(inner, min_size=1, max_size=2).map(lambda b: {"allOf": b}),
        inner.map(lambda i: {"additionalProperties": i}),
    ),
    max_leaves=8,
)


@given(schema=MARKS, data=st.dictionaries(st.text("ab.[]/", max_size=3), JSON, max_size=4))
def test_there_and_back_again(schema: dict[str, Any], data: dict[str, Any]) -> None:
    cipher = AesGcm(KEY)
    assert unprotect(schema, protect(schema, data, cipher), cipher) == data
