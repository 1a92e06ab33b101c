"""Start-up barrier: no worker proceeds until all have connected.

Each task listens on its own port, which TensorFlow's server uses afterwards.
The others report to the first one, which checks that it can reach their ports.
"""

import contextlib
import errno
import hashlib
import json
import re
import select
import socket
import time

from tf_contrastive import errors, terminal
from tf_contrastive.distribution.cluster import Cluster

# Answers of the first task.
_GO, _GIVE_UP = b"go\n", b"give up\n"
# How long a connection may take to send its line, and the line's length.
_HELLO_SECONDS = 5.0
_LINE_BYTES = 256


def wait_for_all(cluster: Cluster, timeout: float) -> None:
    """Waits until every process of the cluster runs and can be reached.

    Args:
      cluster: of this process; must be equal on all of them.
      timeout: in seconds.

    Raises:
      UserError: naming the tasks that are absent, or cannot be reached.
    """
    deadline = time.monotonic() + timeout
    others = len(cluster.tasks) - 1
    with _listen(cluster) as server:
        try:
            if cluster.rank:
                _report(cluster, deadline)
            elif others:
                terminal.info(
                    f"workers    waiting for {others} more, at most"
                    f" {timeout:g} s"
                )
                _gather(cluster, server, deadline)
        except TimeoutError as error:
            raise errors.UserError(
                f"{cluster.origin}: {error} within {timeout:g} s: start every"
                " worker by the same command, each at its own address"
            ) from error


def _listen(cluster: Cluster) -> socket.socket:
    """Listens at this task's own address in the cluster."""
    name, address = cluster.tasks[cluster.rank]
    host, port = _split(address)
    backlog = len(cluster.tasks)
    both = socket.has_dualstack_ipv6()
    try:
        try:
            family, *_, own = socket.getaddrinfo(host, port)[0]
            return socket.create_server(
                own[:2], family=socket.AddressFamily(family), backlog=backlog
            )
        except OSError as error:
            # A name that is not known here, or an address that is forwarded to
            # this machine: reached through any of its interfaces.
            if not isinstance(error, socket.gaierror) and (
                error.errno != errno.EADDRNOTAVAIL
            ):
                raise
            return socket.create_server(
                ("", port),
                family=socket.AF_INET6 if both else socket.AF_INET,
                dualstack_ipv6=both,
                backlog=backlog,
            )
    except OSError as error:
        raise errors.UserError(
            f"{cluster.origin}: {name} cannot listen at {address}"
            f" ({error.strerror}): stop the process that does, or use another"
            " port"
        ) from error


def _fingerprint(cluster: Cluster) -> str:
    return hashlib.sha256(repr(cluster.tasks).encode()).hexdigest()


def _gather(cluster: Cluster, server: socket.socket, deadline: float) -> None:
    """Waits for the other tasks and answers whether to proceed.

    Connections that do not speak the protocol are dropped. None of them delays
    the others or the deadline.
    """
    present: dict[int, socket.socket] = {}
    # Connection -> what it has sent, and until when it may send.
    pending: dict[socket.socket, tuple[bytes, float]] = {}
    verdict = _GIVE_UP
    try:
        while len(present) < len(cluster.tasks) - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(_absent(cluster, set(present)))
            readable, _, _ = select.select(
                [server, *pending], [], [], min(left, 1.0)
            )
            for connection in readable:
                if connection is server:
                    accepted, _ = server.accept()
                    until = time.monotonic() + _HELLO_SECONDS
                    pending[accepted] = b"", until
                    continue
                line, until = pending.pop(connection)
                with contextlib.suppress(OSError):
                    line += (received := connection.recv(_LINE_BYTES))
                    if received and b"\n" not in line:
                        if len(line) < _LINE_BYTES:
                            pending[connection] = line, until
                            continue
                    elif hello := _hello(cluster, line):
                        # A restarted worker replaces its former connection.
                        present[hello[0]] = connection
                        _check_peer(cluster, *hello)
                        continue
                connection.close()
            for connection, (_, until) in list(pending.items()):
                if time.monotonic() > until:
                    del pending[connection]
                    connection.close()
        verdict = _GO
    finally:
        for connection in pending:
            connection.close()
        for connection in present.values():
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_HELLO_SECONDS)
                connection.sendall(verdict)


def _hello(cluster: Cluster, line: bytes) -> tuple[int, str] | None:
    """Returns rank and fingerprint of a worker; None: it is not a worker."""
    try:
        rank, fingerprint = json.loads(line)
    except (ValueError, TypeError):
        return None
    is_rank = isinstance(rank, int) and 0 < rank < len(cluster.tasks)
    is_hash = re.fullmatch("[0-9a-f]{64}", str(fingerprint))
    return (rank, fingerprint) if is_rank and is_hash else None


def _check_peer(cluster: Cluster, rank: int, fingerprint: str) -> None:
    name, address = cluster.tasks[rank]
    if fingerprint != _fingerprint(cluster):
        raise errors.UserError(
            f"{cluster.origin}: {name} has other addresses than"
            f" {cluster.tasks[0][0]}: set the same cluster on all workers"
        )
    try:
        socket.create_connection(_split(address), timeout=5).close()
    except OSError as error:
        raise errors.UserError(
            f"{cluster.origin}: {name} is running, but cannot be reached at"
            f" {address} ({error}): set an address that the other workers can"
            " connect to"
        ) from error


def _absent(cluster: Cluster, present: set[int]) -> str:
    """Describes the tasks that did not report."""
    absent = [
        f"{name} ({address})"
        for rank, (name, address) in enumerate(cluster.tasks)
        if rank and rank not in present
    ]
    more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
    return (
        f"{len(absent)} of {len(cluster.tasks)} did not start:"
        f" {', '.join(absent[:3])}{more}"
    )


def _report(cluster: Cluster, deadline: float) -> None:
    """Reports to the first task and waits for its answer."""
    name, address = cluster.tasks[0]
    hello = json.dumps([cluster.rank, _fingerprint(cluster)]) + "\n"
    while (left := deadline - time.monotonic()) > 0:
        # Another run's server, about to end, may still listen there: only the
        # protocol's own answers count.
        answer = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(_split(address), left) as connection,
        ):
            connection.sendall(hello.encode())
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            answer = _read_line(connection)
        if answer == _GO:
            return
        if answer == _GIVE_UP:
            raise errors.UserError(
                f"{cluster.origin}: {name} ({address}) stopped waiting for all"
                " workers: see its message"
            )
        time.sleep(0.2)
    raise TimeoutError(f"{name} ({address}) did not answer this worker")


def others(cluster: Cluster) -> list[tuple[str, int]]:
    """Returns host and port of each other task of the cluster."""
    return [
        _split(address)
        for rank, (_, address) in enumerate(cluster.tasks)
        if rank != cluster.rank
    ]


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _read_line(connection: socket.socket) -> bytes:
    """Reads up to a newline or the end."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
        received = connection.recv(_LINE_BYTES)
        if not received:
            break
        line += received
    return line
