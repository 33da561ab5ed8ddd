"""The control plane's programs: who they are to the API server, and each flag's reason."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.daemons import Daemons

# The address of the bridge that all pods hang on: also every node's address and the pods' DNS server.
HOST = "10.88.0.1"
PODS = "10.88.0.0/16"
SERVICES = "10.96.0.0/16"
DNS_DOMAIN = "cluster.local"
SERVER = f"https://{HOST}:6443"
ETCD = "http://127.0.0.1:2379"
ETCD_PEERS = "http://127.0.0.1:2380"
# Tests that look at names see at once which cluster they are in; see `kubectl.check_test_context`.
CONTEXT = "heterps-test"

# Users and groups that Kubernetes' own roles are bound to. CoreDNS gets an administrator's token: the role that it
# would need is made by whoever installs it, which here would be one more thing to wait for.
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
    "clusterCIDR": PODS,
    # The tables of tracked connections are sized for the whole machine: not from inside a network namespace.
    "conntrack": {"maxPerCore": 0},
    # By default it gathers changes for a second, which tests would wait for.
    "iptables": {"minSyncPeriod": "0.1s"},
}


@dataclass(frozen=True)
class ControlPlane:
    """Files and programs of a control plane in a folder of its own."""

    folder: Path
    programs: dict[str, Path]
    # Without news of a node it counts as lost. Forty seconds by default: tests that stop a kubelet would wait for it.
    node_grace_seconds: int = 12

    @property
    def certificate(self) -> Path:
        """The API server's, signed by itself: it makes one at its first start."""
        return self.folder / "pki" / "apiserver.crt"

    def kubeconfig(self, identity: str) -> Path:
        return self.folder / f"{identity}.kubeconfig"

    def write_credentials(self, nodes: list[str]) -> None:
        """Make the key that signs service accounts' tokens, and a token and kubeconfig for everyone."""
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
            # The cluster does not outlive the machine's next start, so no write has to reach the disk.
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
            f"--advertise-address={HOST}",
            f"--cert-dir={self.certificate.parent}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DNS_DOMAIN}",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            f"--token-auth-file={self.certificate.parent / 'tokens.csv'}",
            # As in every real cluster: what a service account may do is up to its roles.
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # The nodes' names are in no DNS; logs and exec go to their addresses.
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
        ])  # fmt: skip

    def start_controllers(self, daemons: Daemons) -> None:
        """Start what needs the API server: controllers, scheduler, service addresses, DNS."""
        daemons.start("controller-manager", [
            self.programs["kube-controller-manager"],
            f"--kubeconfig={self.kubeconfig('controller-manager')}",
            "--leader-elect=false",
            f"--service-account-private-key-file={self.folder / 'pki' / 'service-accounts.key'}",
            # Pods get it to check the API server by.
            f"--root-ca-file={self.certificate}",
            "--use-service-account-credentials=true",
            f"--node-monitor-grace-period={self.node_grace_seconds}s",
            "--node-monitor-period=2s",
            # Fifteen seconds by default.
            "--horizontal-pod-autoscaler-sync-period=2s",
            # Certificates signed on request: nobody asks here, and it would need a key of a certificate authority.
            "--controllers=*,-certificatesigningrequest-signing-controller",
        ])  # fmt: skip
        daemons.start("scheduler", [
            self.programs["kube-scheduler"],
            f"--kubeconfig={self.kubeconfig('scheduler')}",
            "--leader-elect=false",
        ])  # fmt: skip
        (self.folder / "Corefile").write_text(
            COREFILE.format(domain=DNS_DOMAIN, host=HOST, kubeconfig=self.kubeconfig("dns"))
        )
        daemons.start("dns", [self.programs["coredns"], "-conf", self.folder / "Corefile"])

    def start_proxy(self, daemons: Daemons, node: str) -> None:
        """Start kube-proxy: one serves all nodes, as they share the network namespace."""
        settings = {
            **PROXY,
            "clientConnection": {"kubeconfig": str(self.kubeconfig("proxy"))},
            "hostnameOverride": node,
        }
        (self.folder / "proxy.json").write_text(json.dumps(settings))
        daemons.start("proxy", [self.programs["kube-proxy"], f"--config={self.folder / 'proxy.json'}"])

    def _kubeconfig_text(self, identity: str, token: str) -> str:
        # The API server writes its certificate later: by name, not by content.
        server = {"server": SERVER, "certificate-authority": str(self.certificate)}
        return json.dumps({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": CONTEXT, "cluster": server}],
            "users": [{"name": identity, "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": identity}}],
            "current-context": CONTEXT,
        })  # fmt: skip


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, mode=0o600)) as file:
        file.write(text)
