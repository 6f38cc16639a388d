"""TLS of a client as Dask's configuration sets it up, and what to do where an address does not answer."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import dask
from distributed.comm import get_address_host_port
from distributed.security import Security

from distrff.errors import ClusterError, first_line
from distrff.public_names import public_name

_HANDSHAKE_SECONDS = 1.0
_TLS_SETTINGS = "ca-file, client.cert and client.key under distributed.comm.tls in Dask's configuration"
_NO_TLS = "what listens there has no TLS: write {tcp} in place of {tls}"
# By what an error's text has in it, which is OpenSSL's or Dask's.
_REMEDIES = (
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("cannot convert to SSL", _NO_TLS),  # it spoke before it was asked to
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the ca-file under distributed.comm.tls in Dask's configuration did not sign the certificate of what "
        "listens there; give the one that did",
    ),
    ("ALERT", f"it refuses this client's certificate: set {_TLS_SETTINGS} to those that it knows"),
    # The same, when it hangs up before its reason is read.
    (
        "EOF occurred",
        f"it hung up, as one does that refuses this client's certificate: set {_TLS_SETTINGS} to those that "
        "it knows",
    ),
    (
        "encryption required",
        "distributed.comm.require-encryption is set: give a tls:// address, or unset it for a network that "
        "is trusted",
    ),
)


def client_security(address: str) -> dict[str, Any]:
    """Return what Dask's configuration says of TLS, as far as it can be used for this address."""
    try:
        security = Security().get_connection_args("client")
    except (OSError, ValueError) as error:  # OpenSSL's own errors are OSErrors
        _refuse_unreadable_file(error)
        raise ClusterError(
            f"the TLS settings of this client cannot be used ({first_line(error)}); {_TLS_SETTINGS} must be "
            f"files that can be read, or PEM text, and client.key the key of client.cert"
        ) from error
    if address.startswith("tls://") and security.get("ssl_context") is None:
        raise ClusterError(
            f"{public_name(address)} asks for TLS, which this client has no settings for; set "
            f"{_TLS_SETTINGS} to those that belong to the scheduler, or by the environment: "
            f"DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT, …__CLIENT__KEY; or write "
            f"{_with_scheme('tcp', address)} if it has no TLS"
        )
    return security


def _refuse_unreadable_file(cause: Exception) -> None:
    """Raise ClusterError for the first file of this client's TLS settings that cannot be opened, if any."""
    for name in ("ca-file", "client.cert", "client.key"):
        path = dask.config.get(f"distributed.comm.tls.{name}")
        if path is None or "\n" in path:  # PEM text
            continue
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise ClusterError(
                f"the {name} of this client's TLS settings cannot be read: {path} ({error.strerror}); set "
                f"distributed.comm.tls.{name} in Dask's configuration to a file that is there and readable"
            ) from cause


def remedy(address: str, error: Exception) -> str:
    """Return what to do about the error in which connecting to the address ended."""
    tcp, tls = _with_scheme("tcp", address), _with_scheme("tls", address)
    for sign, told in _REMEDIES:
        if sign in str(error):
            return told.format(tcp=tcp, tls=tls)
    if address.startswith("tcp://") and _speaks_tls(address):
        return f"what listens there speaks TLS: write {tls} in place of {tcp}"
    security = (
        f", and that {_TLS_SETTINGS} belong to it ({tcp} if it has no TLS)"
        if address.startswith("tls://")
        else ""
    )
    return (
        f"check that it runs, that this is its address and port (not the dashboard's), and that no firewall "
        f"is between{security}"
    )


def _with_scheme(scheme: str, address: str) -> str:
    return f"{scheme}://{public_name(address).partition('://')[2]}"


def _speaks_tls(address: str) -> bool:
    """Return whether what listens there takes up a TLS handshake, whatever it thinks of certificates.

    In the clear it tells nothing: it hangs up, or is silent.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent that matters
    try:
        with (
            socket.create_connection(get_address_host_port(address), _HANDSHAKE_SECONDS) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError as error:  # that of TLS included
        return "ALERT" in str(error)  # it refused, as TLS does
    except (ValueError, OverflowError):  # no name of a host, no number of a port
        return False
