"""The control plane's programs: their credentials, and the reason for each flag."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.addresses import IPV4, Addresses
from tests.cluster.daemons import Daemons

DNS_DOMAIN = "cluster.local"
ETCD = "http://127.0.0.1:2379"
ETCD_PEERS = "http://127.0.0.1:2380"
# Tests that inspect names recognise the cluster; see `kubectl.check_test_context`.
CONTEXT = "heterps-test"

# Users and groups that Kubernetes' own roles are bound to. CoreDNS gets an administrator's token: its installer would
# create the role that it needs, and waiting for that is unnecessary here.
IDENTITIES = {
    "admin": ("heterps-admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "dns": ("heterps-dns", "system:masters"),
}

COREFILE = """\
{domain}:53 {{
  bind {host}
  errors
  kubernetes {domain} {{
    kubeconfig {kubeconfig}
    ttl 1
  }}
}}
"""
PROXY = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "iptables",
    # Connection tracking tables are sized for the whole machine, which is impossible inside a network namespace.
    "conntrack": {"maxPerCore": 0},
    # By default it batches changes for a second, which tests would wait for.
    "iptables": {"minSyncPeriod": "0.1s"},
}


@dataclass(frozen=True)
class ControlPlane:
    """Files and programs of a control plane in a separate folder."""

    folder: Path
    programs: dict[str, Path]
    # A silent node counts as lost after this time. The default is forty seconds, for which tests that stop a kubelet
    # would wait.
    node_grace_seconds: int = 12
    addresses: Addresses = IPV4

    @property
    def certificate(self) -> Path:
        """The API server's self-signed certificate, created at its first start."""
        return self.folder / "pki" / "apiserver.crt"

    def kubeconfig(self, identity: str) -> Path:
        return self.folder / f"{identity}.kubeconfig"

    def write_credentials(self, nodes: list[str]) -> None:
        """Create the key that signs service accounts' tokens, and a token and kubeconfig for every user."""
        pki = self.folder / "pki"
        pki.mkdir()
        key = pki / "service-accounts.key"
        subprocess.run(
            ["openssl", "genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(key)],
            check=True,
        )
        identities = IDENTITIES | {f"node-{node}": (f"system:node:{node}", "system:nodes") for node in nodes}
        tokens = {identity: secrets.token_hex(16) for identity in identities}
        write_secret(
            pki / "tokens.csv",
            "".join(f"{tokens[i]},{user},{user},{group}\n" for i, (user, group) in identities.items()),
        )
        for identity in identities:
            write_secret(self.kubeconfig(identity), self._kubeconfig_text(identity, tokens[identity]))

    def start_server(self, daemons: Daemons) -> None:
        """Start etcd and the API server."""
        daemons.start("etcd", [
            self.programs["etcd"],
            f"--data-dir={self.folder / 'etcd'}",
            # The cluster does not survive a reboot, so no write has to reach the disk.
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            f"--listen-peer-urls={ETCD_PEERS}",
            f"--initial-advertise-peer-urls={ETCD_PEERS}",
            f"--initial-cluster=default={ETCD_PEERS}",
        ])  # fmt: skip
        key = self.folder / "pki" / "service-accounts.key"
        daemons.start("apiserver", [
            self.programs["kube-apiserver"],
            f"--etcd-servers={ETCD}",
            "--secure-port=6443",
            f"--bind-address={self.addresses.unspecified}",
            f"--advertise-address={self.addresses.host}",
            f"--cert-dir={self.certificate.parent}",
            f"--service-cluster-ip-range={self.addresses.services}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DNS_DOMAIN}",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            f"--token-auth-file={self.certificate.parent / 'tokens.csv'}",
            # As in every real cluster: roles decide what a service account may do.
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # The nodes' names are not in DNS; logs and exec use their addresses.
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
        ])  # fmt: skip

    def start_controllers(self, daemons: Daemons) -> None:
        """Start the clients of the API server: controllers, scheduler, service addresses, DNS."""
        daemons.start("controller-manager", [
            self.programs["kube-controller-manager"],
            f"--kubeconfig={self.kubeconfig('controller-manager')}",
            "--leader-elect=false",
            f"--service-account-private-key-file={self.folder / 'pki' / 'service-accounts.key'}",
            # Pods receive it to verify the API server.
            f"--root-ca-file={self.certificate}",
            "--use-service-account-credentials=true",
            f"--node-monitor-grace-period={self.node_grace_seconds}s",
            "--node-monitor-period=2s",
            # The default is fifteen seconds.
            "--horizontal-pod-autoscaler-sync-period=2s",
            # Signing certificates on request is unused here, and would need a key of a certificate authority.
            "--controllers=*,-certificatesigningrequest-signing-controller",
        ])  # fmt: skip
        daemons.start("scheduler", [
            self.programs["kube-scheduler"],
            f"--kubeconfig={self.kubeconfig('scheduler')}",
            "--leader-elect=false",
        ])  # fmt: skip
        (self.folder / "Corefile").write_text(
            COREFILE.format(domain=DNS_DOMAIN, host=self.addresses.host, kubeconfig=self.kubeconfig("dns"))
        )
        daemons.start("dns", [self.programs["coredns"], "-conf", self.folder / "Corefile"])

    def start_proxy(self, daemons: Daemons, node: str) -> None:
        """Start kube-proxy: one serves all nodes, as they share the network namespace."""
        settings = {
            **PROXY,
            "clusterCIDR": self.addresses.pods,
            "clientConnection": {"kubeconfig": str(self.kubeconfig("proxy"))},
            "hostnameOverride": node,
        }
        (self.folder / "proxy.json").write_text(json.dumps(settings))
        daemons.start("proxy", [self.programs["kube-proxy"], f"--config={self.folder / 'proxy.json'}"])

    def _kubeconfig_text(self, identity: str, token: str) -> str:
        # The API server writes its certificate later: refer to it by name, not by content.
        server = {"server": self.addresses.server, "certificate-authority": str(self.certificate)}
        return json.dumps({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": server}],
            "users": [{"name": identity, "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": identity}}],
            "current-context": CONTEXT,
        })  # fmt: skip


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, mode=0o600)) as file:
        file.write(text)
