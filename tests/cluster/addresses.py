"""The addresses of a cluster, of one family or of both."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network


@dataclass(frozen=True)
class Family:
    """Addresses of one family."""

    host: str  # of the bridge of all pods: also every node's address
    pods: str  # a network with `host`
    services: str

    @property
    def is_ipv6(self) -> bool:
        return ip_address(self.host).version == 6

    @property
    def everywhere(self) -> str:
        """The network of the default route."""
        return "::/0" if self.is_ipv6 else "0.0.0.0/0"

    @property
    def interface(self) -> str:
        """`host` with the length of its network's prefix."""
        return f"{self.host}/{ip_network(self.pods).prefixlen}"


@dataclass(frozen=True)
class Addresses:
    """Addresses of a cluster. Pods and nodes have one of each family, and Services one of the first unless they ask."""

    families: tuple[Family, ...]

    @property
    def host(self) -> str:
        """Where the API server and the pods' DNS server are reached."""
        return self.families[0].host

    @property
    def hosts(self) -> str:
        return ",".join(family.host for family in self.families)

    @property
    def pods(self) -> str:
        return ",".join(family.pods for family in self.families)

    @property
    def services(self) -> str:
        return ",".join(family.services for family in self.families)

    @property
    def unspecified(self) -> str:
        """For programs that listen on all addresses."""
        return "::" if any(family.is_ipv6 for family in self.families) else "0.0.0.0"

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{f'[{self.host}]' if self.families[0].is_ipv6 else self.host}:6443"


_FAMILY_4 = Family("10.88.0.1", "10.88.0.0/16", "10.96.0.0/16")
_FAMILY_6 = Family("fd00:88::1", "fd00:88::/64", "fd00:96::/112")
IPV4 = Addresses((_FAMILY_4,))
IPV6 = Addresses((_FAMILY_6,))
DUAL_STACK = Addresses((_FAMILY_4, _FAMILY_6))
