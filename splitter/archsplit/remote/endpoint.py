"""The address of a build farm, and the credentials for its servers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import urlsplit

from archsplit.errors import UsageError
from archsplit.system.env import is_loopback, without_passwords

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from typing_extensions import Unpack

__pure__ = True

_TLS = {"grpc": False, "grpcs": True}
_PORT = 443
_DASK_ADDRESS = re.compile(r"(tls://(?:\[[\da-fA-F:.]+\]|[^\s/@:\[\]]+):\d+)/?")
"""Address of a scheduler; its port is required, because dask would choose one of its own."""
_FORM = (
    "write it as grpcs://host:port/instance, or as grpc://host:port/instance without TLS; a dask"
    " scheduler as tls://host:port"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server of the Remote Execution API.

    Attributes:
        host: host and port.
        instance: name of the instance; "" for the server's default.
        tls: True to encrypt the connection.
        token: bearer token; "" for none.
        certificates: file with the certificates of the server's authority; None for the system's.
        client_certificate: file with this client's certificate; None for none.
        client_key: file with its key.
        properties: required properties of the workers, by name.
    """

    host: str
    instance: str
    tls: bool
    token: str = field(default="", repr=False)
    certificates: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def address(self) -> str:
        """Return the address for messages; it has no secret."""
        scheme = "grpcs" if self.tls else "grpc"
        return f"{scheme}://{self.host}{'/' * bool(self.instance)}{self.instance}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskEndpoint:
    """A scheduler of dask, with TLS.

    Attributes:
        address: ``tls://``, host and port.
        certificates: file with the certificates of the authority that signed each machine's.
        certificate: file with the certificate of this machine.
        key: file with its key.
    """

    address: str
    certificates: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """A build farm or a dask cluster to run steps on.

    Attributes:
        endpoint: its address and credentials.
        jobs: most steps on it at a time.
    """

    endpoint: Endpoint | DaskEndpoint
    jobs: int


class TlsFiles(TypedDict):
    """Files of a connection with TLS, as of `DaskEndpoint`; None for none."""

    certificates: Path | None
    certificate: Path | None
    key: Path | None


def parse_engine(
    address: str, *, token: str, properties: Iterable[str] = (), **files: Unpack[TlsFiles]
) -> Endpoint | DaskEndpoint:
    """Return the endpoint of a farm, or of a dask scheduler for ``tls://``.

    Raises:
        UsageError: see `parse_dask_endpoint` and `parse_endpoint`.
    """
    # Also `tcp:`, because only the parser of dask's addresses explains that TLS is missing.
    if address.startswith(("tls:", "tcp:")):
        return parse_dask_endpoint(address, **files)
    return parse_endpoint(address, token=token, properties=properties, **files)


def parse_dask_endpoint(
    address: str, *, certificates: Path | None, certificate: Path | None, key: Path | None
) -> DaskEndpoint:
    """Return the endpoint of a dask scheduler.

    Raises:
        UsageError: the address has another form, or the connection would not be encrypted.
    """
    found = _DASK_ADDRESS.fullmatch(address)
    if found is None:
        raise UsageError(
            f"{without_passwords(address)!r} is not the address of a dask scheduler with TLS",
            hint="write it as tls://host:port; anyone who reaches a scheduler without TLS can run"
            " programs on all of its workers",
        )
    if certificates is None or certificate is None or key is None:
        raise UsageError(
            "a dask scheduler with TLS needs --remote-ca, --remote-cert and --remote-key"
        )
    return DaskEndpoint(
        address=found[1], certificates=certificates, certificate=certificate, key=key
    )


def parse_endpoint(
    address: str,
    *,
    token: str = "",
    certificates: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    properties: Iterable[str] = (),
) -> Endpoint:
    """Return the endpoint at an address.

    Args:
        address: ``grpc://`` or ``grpcs://``, host, port and instance.
        token, certificates: see `Endpoint`.
        certificate, key: the client's.
        properties: in the form ``NAME=VALUE``.

    Raises:
        UsageError: the address or a property has another form; or a secret would be sent without
            encryption.
    """
    shown = without_passwords(address)
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise UsageError(f"{shown} has no valid host and port", hint=_FORM) from None
    # A query or fragment would be ignored: most often it is a typo for the instance.
    if parts.scheme not in _TLS or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"{shown!r} is not the address of a build farm", hint=_FORM)
    if parts.username is not None:
        raise UsageError(
            f"the address of {parts.hostname} has a user or a password",
            hint="put a token into ARCHSPLIT_REMOTE_TOKEN: addresses get into logs",
        )
    tls = _TLS[parts.scheme]
    # gRPC has a standard port with TLS only.
    if port is None and not tls:
        raise UsageError(f"{shown} has no port", hint=_FORM)
    # A token on the loopback stays on this machine, as with an SSH tunnel.
    if token and not tls and not is_loopback(parts.hostname):
        raise UsageError(
            f"the token would be sent to {parts.hostname} without encryption",
            hint="write grpcs:// for grpc://",
        )
    if (certificate is None) != (key is None):
        raise UsageError("--remote-cert and --remote-key belong together")
    named = [text.partition("=") for text in properties]
    if faulty := [name for name, equals, _ in named if not (name and equals)]:
        raise UsageError(f"--remote-property {faulty[0]}: expected NAME=VALUE")
    # urlsplit removes the brackets of an IPv6 address, and gRPC needs them.
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Endpoint(
        host=f"{host}:{port or _PORT}",
        instance=parts.path.strip("/"),
        tls=tls,
        token=token,
        certificates=certificates,
        client_certificate=certificate,
        client_key=key,
        # Sorted as the Remote Execution API requires: the digest of an action depends on it.
        properties=tuple(sorted((name, value) for name, _, value in named)),
    )
