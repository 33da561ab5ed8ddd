"""With encryption, only holders of the token get a connection, in both directions, and they learn why they get none."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import zmq

from heterps_runtime import tls
from heterps_runtime.contract import PATH_HEALTH, PATH_STATUS
from heterps_runtime.errors import TransientError, UserError
from heterps_runtime.wire.codec import MAX_FRAME_BYTES, encode
from heterps_runtime.wire.link import Credentials
from heterps_runtime.wire.messages import Forward, Go, Shutdown
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.sequence import Stamp
from heterps_runtime.wire.transport import Connection, Listener, TokenAuthority, listen_socket
from heterps_runtime.worker.exchange.peers import Downstream, Upstream
from tests.heterps_runtime.helpers.jobs import TOKEN, ThreadedJob, configuration

Context = zmq.Context[zmq.Socket[bytes]]

SECURITY = LinkSecurity(TOKEN, encrypted=True)
FOREIGN = LinkSecurity("the token of another job", encrypted=True)


class Informed(LinkSecurity):
    """A stranger who has learnt the listener's public key, which each connection shows."""

    def guard_connection(self, socket: zmq.Socket[bytes]) -> None:
        super().guard_connection(socket)
        socket.set(zmq.CURVE_SERVERKEY, zmq.curve_public(SECURITY._listening_key()))


class Impostor(LinkSecurity):
    """Admits everyone."""

    def admits(self, mechanism: bytes, credentials: Sequence[bytes]) -> bool:
        return True


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.term()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ThreadedJob]:
    document = configuration(tmp_path / "job")
    document["job"]["spec"]["encryption"] = "Required"
    job = ThreadedJob(document)
    yield job
    job.close()


def test_only_holders_of_the_token_are_heard(context: Context, capfd: pytest.CaptureFixture[str]) -> None:
    TokenAuthority(context, SECURITY)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    strangers = [
        Connection(context, address, f"stranger-{i}", security)
        for i, security in enumerate([FOREIGN, Informed(FOREIGN.token, True), LinkSecurity(TOKEN, encrypted=False)])
    ]
    bare = context.socket(zmq.DEALER)
    bare.connect(address)
    for connection in strangers:
        connection.send(Shutdown("intrusion"))
    bare.send_multipart(encode(Shutdown("intrusion"), Stamp(0, 0)), copy=False)
    right = Connection(context, address, "right", SECURITY)
    right.send(Go(7))
    assert listener.poll(10_000)
    served = Listener(listener)
    assert served.receive() == (b"right", Go(7))
    served.send(b"right", Go(8))
    assert right.pollables[0].poll(10_000)
    assert right.receive() == Go(8)
    for connection in strangers:  # each is told that its handshake failed
        assert connection.pollables[1].poll(10_000)
        assert not connection.broke(), "there was no connection"
    assert not listener.poll(300), "no other is heard, although they spoke first"
    said = capfd.readouterr().err
    assert said.count(f"the handshake with {address} fails: it ends, is of another job") == len(strangers)
    assert said.count("refused a connection from 127.0.0.1: it does not hold the token") == 1, "once per address"
    for connection in (*strangers, right):
        connection.close()
    bare.close(linger=0)
    listener.close(linger=0)


def test_the_longest_frames_arrive(context: Context) -> None:
    """Encrypted, a frame is longer than before; a message of three has two of the full length."""
    TokenAuthority(context, SECURITY)
    listener, address = listen_socket(context, "127.0.0.1", SECURITY)
    upstream, downstream = Upstream(listener), Downstream(context, SECURITY, "worker-0-0", 1, [address])
    values = np.arange(2 * MAX_FRAME_BYTES // 8 + 1, dtype=np.int64)
    downstream.send(0, Forward(1, 0, True, 0, 0, {"x": values}, (), ()))
    assert listener.poll(20_000)
    [(_, message)] = upstream.poll(1)
    assert np.array_equal(message.tensors["x"], values)
    downstream.close()
    listener.close(linger=0)


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_member_tells_an_impostor_nothing(context: Context, encrypted: bool) -> None:
    """The impostor listens at the address of a member."""
    impostor = Impostor("the token of another job", encrypted)
    TokenAuthority(context, impostor)
    listener, address = listen_socket(context, "127.0.0.1", impostor)
    member = Connection(context, address, "member", SECURITY)
    member.send(Go(1))
    assert member.pollables[1].poll(10_000)
    assert not member.broke()
    assert not listener.poll(300)
    member.close()
    listener.close(linger=0)


def test_all_holders_derive_the_same_certificate_and_others_another_one() -> None:
    certificates = {token: tls._identity(token)[1] for token in (TOKEN, FOREIGN.token)}
    assert tls._identity(TOKEN)[1] == certificates[TOKEN]
    assert len(set(certificates.values())) == 2
    assert len({tls.derive_key(TOKEN, purpose) for purpose in ("one", "two")}) == 2
    assert TOKEN not in repr(SECURITY)


def _status(url: str, context: ssl.SSLContext | None) -> int | None:
    """Status of the answer to a request without a token; None: the connection is refused."""
    try:
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


def test_the_coordinator_answers_holders_of_the_token_over_tls(job: ThreadedJob) -> None:
    url = job.credentials.url
    assert urlsplit(url).scheme == "https"
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without.check_hostname, without.verify_mode = False, ssl.CERT_NONE
    older, foreign = tls.client_context(TOKEN), tls.client_context(FOREIGN.token)
    older.minimum_version, older.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    foreign.verify_mode = ssl.CERT_NONE
    for path in (PATH_HEALTH, PATH_STATUS):
        for stranger in (without, foreign, older):
            assert _status(url + path, stranger) is None
        assert _status(url.replace("https:", "http:") + path, None) is None
    holder = tls.client_context(TOKEN)
    assert _status(url + PATH_HEALTH, holder) == 200
    assert _status(url + PATH_STATUS, holder) == 401, "the bearer token is still asked for"
    assert job.status()["phase"] == "Profiling"


def test_a_member_of_another_job_ends_with_the_cause(job: ThreadedJob) -> None:
    url = job.credentials.url
    with pytest.raises(TransientError, match=rf"{url} and this process do not hold the same token, or .*CERTIFICATE_"):
        Credentials(url, FOREIGN).control_address()


def test_a_token_is_never_sent_in_clear(job: ThreadedJob) -> None:
    url = job.credentials.url.replace("https:", "http:")
    with pytest.raises(UserError, match=r"HETERPS_COORDINATOR: must be an address https://HOST:PORT, as spec.encr"):
        Credentials(url, SECURITY)
    with pytest.raises(UserError, match=r"HETERPS_COORDINATOR: must be an address http://HOST:PORT, as spec.encr"):
        Credentials(job.credentials.url, LinkSecurity(TOKEN, encrypted=False))


@pytest.mark.parametrize("url", ["", "http://", "http://[::1", "http://host", "http://host:x", "http://host:99999"])
def test_an_address_that_is_none_is_refused_by_name(url: str) -> None:
    with pytest.raises(UserError, match="HETERPS_COORDINATOR: must be an address http://HOST:PORT"):
        Credentials(url, LinkSecurity(TOKEN, encrypted=False))


def test_a_coordinator_without_encryption_is_refused(tmp_path: Path) -> None:
    job = ThreadedJob(configuration(tmp_path / "job"))
    credentials = Credentials(job.credentials.url.replace("http:", "https:"), SECURITY)
    with pytest.raises(TransientError, match=r"or do not both encrypt: .*SSL"):
        credentials.control_address()
    job.close()
