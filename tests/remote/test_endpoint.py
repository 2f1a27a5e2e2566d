"""Addresses of build farms, and the secrets that must not leave in the clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from archsplit.errors import UsageError
from archsplit.remote.endpoint import parse_dask_endpoint, parse_endpoint


@pytest.mark.parametrize(
    ("address", "host", "instance", "tls"),
    [
        ("grpc://127.0.0.1:8980", "127.0.0.1:8980", "", False),
        ("grpcs://farm.example/main", "farm.example:443", "main", True),
        ("grpcs://farm.example:8443/a/b/", "farm.example:8443", "a/b", True),
        ("grpc://[::1]:80/x", "[::1]:80", "x", False),
    ],
)
def test_an_address_has_a_host_and_an_instance(
    address: str, host: str, instance: str, tls: bool
) -> None:
    found = parse_endpoint(address)
    assert (found.host, found.instance, found.tls) == (host, instance, tls)
    assert found.address.startswith(f"grpc{'s' * tls}://{host}")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("farm:8980", "not the address of a build farm"),
        ("https://farm/main", "not the address of a build farm"),
        ("grpcs:///main", "not the address of a build farm"),
        ("grpcs://farm/main?x=1", "not the address of a build farm"),
        ("grpc://farm/main", "has no port"),
        ("grpc://farm:eighty/main", "has no valid host and port"),
        ("grpcs://me:secret@farm:99999/main", "has no valid host and port"),
        ("grpcs://[::1/main", "has no valid host and port"),
        ("https://me:secret@farm/main", "not the address of a build farm"),
        ("grpcs://me:secret@farm/main", "a user or a password"),
    ],
)
def test_another_form_is_refused_without_its_secret(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_endpoint(address)
    assert "secret" not in str(caught.value)
    assert caught.value.hint


def test_a_token_needs_encryption_except_on_this_machine() -> None:
    with pytest.raises(UsageError, match="without encryption"):
        parse_endpoint("grpc://farm:80", token="secret")
    with pytest.raises(UsageError, match="without encryption"):
        parse_endpoint("grpc://10.0.0.1:80", token="secret")
    for address in ("grpcs://farm", "grpc://localhost:1", "grpc://127.0.0.1:1", "grpc://[::1]:1"):
        assert "secret" not in repr(parse_endpoint(address, token="secret"))


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(UsageError, match="belong together"):
        parse_endpoint("grpcs://farm", key=Path("key.pem"))


def test_properties_are_sorted_and_have_values() -> None:
    found = parse_endpoint("grpcs://farm", properties=["os=linux", "image=docker://a=b"])
    assert found.properties == (("image", "docker://a=b"), ("os", "linux"))
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        parse_endpoint("grpcs://farm", properties=["os"])


FILE = Path("a.pem")


@pytest.mark.parametrize(
    "address",
    [
        *("tcp://head:8786", "head:8786", "tls://head", "tls://:8786", "tls://[::1:8786"),
        *("tls://head:8786/x", "tls://me:secret@head:8786"),
    ],
)
def test_a_dask_scheduler_has_tls_and_a_port(address: str) -> None:
    with pytest.raises(UsageError, match="not the address of a dask scheduler with TLS") as caught:
        parse_dask_endpoint(address, certificates=FILE, certificate=FILE, key=FILE)
    assert "secret" not in str(caught.value)
    assert "can run programs on all of its workers" in str(caught.value.hint)


def test_a_dask_scheduler_has_certificates() -> None:
    for address in ("tls://head:8786", "tls://[::1]:8786"):
        found = parse_dask_endpoint(address, certificates=FILE, certificate=FILE, key=FILE)
        assert found.address == address
    with pytest.raises(UsageError, match="needs --remote-ca, --remote-cert and --remote-key"):
        parse_dask_endpoint("tls://head:8786", certificates=FILE, certificate=FILE, key=None)
