"""Personal data does not reach a page that people pass around."""

from __future__ import annotations

import pytest

from shinar.pipeline.report.mask import Mask, marked_fields


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"to":"ann@example.com","n":1}', '{"to":"***","n":1}'),
        ('{"a":"x \\u0040 y","b":"ann\\u0040example.com"}', '{"a":"x \\u0040 y","b":"***"}'),
        ('{"password":"s3cr\\"et","n":1}', '{"password":"***","n":1}'),
        ('{"Token" : 12345 }', '{"Token":"***" }'),
        ('{"phone":"+49 30 1234', '{"phone":"***"'),  # the sample was cut off
        ('{"address":{"phone":null}}', '{"address":{"phone":"***"}}'),
        ("not JSON, ann@example.com wrote", "not JSON, *** wrote"),
        ('{"order_id":7}', '{"order_id":7}'),
    ],
)
def test_samples_are_masked(text: str, shown: str) -> None:
    assert Mask(["phone"])(text) == shown


def test_fields_that_schemas_mark() -> None:
    schema = {
        "definitions": {"name": {"type": "string", "x-gdpr-sensitive": True}},
        "properties": {
            "email": {"type": "string", "x-gdpr-sensitive": True},
            "customer": {"properties": {"name": {"$ref": "#/definitions/name"}, "id": {"type": "integer"}}},
            "lost": {"$ref": "#/definitions/none"},
        },
        "allOf": [{"properties": {"iban": {"x-gdpr-sensitive": True}}}],
    }
    assert marked_fields([schema, {}]) == {"email", "name", "iban"}
