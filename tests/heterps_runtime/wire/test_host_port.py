"""Addresses of both families, wherever the runtime builds or reads one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_runtime.contract import PATH_ENDPOINT
from heterps_runtime.errors import UserError
from heterps_runtime.wire.host_port import join_host_port, split_host_port
from heterps_runtime.wire.link import Credentials
from heterps_runtime.wire.security import LinkSecurity

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
HOSTS = st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(str) | NAMES
PORTS = st.integers(0, 65535)


@given(host=HOSTS, port=PORTS)
def test_hosts_and_ports_are_read_as_they_were_written(host: str, port: int) -> None:
    assert split_host_port(join_host_port(host, port)) == (host, port)


@given(address=st.ip_addresses(v=6), port=PORTS)
def test_an_ipv6_address_without_brackets_is_no_host_and_port(address: object, port: int) -> None:
    """`::1:7402` would be another address."""
    with pytest.raises(ValueError, match=r"^must be HOST:PORT, or \[HOST\]:PORT with an IPv6 address, is "):
        split_host_port(f"{address}:{port}")


@pytest.mark.parametrize(
    "text",
    ["", ":", ":1", "a", "a:", "a:-1", "a:65536", "a:1.0", "a:٣", "[]:1", "[a]:1", "[::1]", "[::1]:", "[::1:1",
     "::1]:1", "[[::1]]:1", "tcp://a:1", "a:" + "9" * 5000],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be HOST:PORT"):
        split_host_port(text)


class Answering(Credentials):
    """The coordinator names its port for messages."""

    def request(self, method: str, path: str, body: object = None) -> object:
        assert (method, path) == ("GET", PATH_ENDPOINT)
        return {"port": 7402}


@given(host=HOSTS, port=st.integers(1, 65535), encrypted=st.booleans())
def test_messages_go_to_the_host_of_the_coordinator(host: str, port: int, encrypted: bool) -> None:
    scheme = "https" if encrypted else "http"
    url = f"{scheme}://{join_host_port(host, port)}"
    credentials = Answering(url, LinkSecurity("token", encrypted))
    address = credentials.control_address()
    assert split_host_port(address.removeprefix("tcp://")) == (host, 7402)


@given(address=st.ip_addresses(v=6))
def test_a_coordinator_s_address_without_brackets_is_refused(address: object) -> None:
    with pytest.raises(UserError, match="HETERPS_COORDINATOR: must be an address http://HOST:PORT"):
        Credentials(f"http://{address}", LinkSecurity("token", encrypted=False))
