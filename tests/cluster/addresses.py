"""The addresses of a cluster, of one family."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network


@dataclass(frozen=True)
class Addresses:
    """Addresses of a cluster."""

    host: str  # of the bridge of all pods: also every node's address and the pods' DNS server
    pods: str  # a network with `host`
    services: str

    @property
    def is_ipv6(self) -> bool:
        return ip_address(self.host).version == 6

    @property
    def unspecified(self) -> str:
        """For programs that listen on all addresses."""
        return "::" if self.is_ipv6 else "0.0.0.0"

    @property
    def everywhere(self) -> str:
        """The network of the default route."""
        return f"{self.unspecified}/0"

    @property
    def interface(self) -> str:
        """`host` with the length of its network's prefix."""
        return f"{self.host}/{ip_network(self.pods).prefixlen}"

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{f'[{self.host}]' if self.is_ipv6 else self.host}:6443"


IPV4 = Addresses("10.88.0.1", "10.88.0.0/16", "10.96.0.0/16")
IPV6 = Addresses("fd00:88::1", "fd00:88::/64", "fd00:96::/112")
