"""Start-up barrier: no worker proceeds until all have connected.

Each task listens on its own port, which TensorFlow's server uses afterwards.
The others report to the first one, which checks that it can reach their ports.
"""

import contextlib
import hashlib
import json
import socket
import time

from tf_contrastive import errors, terminal
from tf_contrastive.distribution.cluster import Cluster

# Answers of the first task.
_GO, _GIVE_UP = b"go\n", b"give up\n"


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
    name, address = cluster.tasks[cluster.rank]
    both = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", _split(address)[1]),
            family=socket.AF_INET6 if both else socket.AF_INET,
            dualstack_ipv6=both,
            backlog=len(cluster.tasks),
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
    """Waits for the other tasks and answers whether to proceed."""
    present: dict[int, socket.socket] = {}
    verdict = _GIVE_UP
    try:
        while len(present) < len(cluster.tasks) - 1:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                raise TimeoutError(_absent(cluster, set(present))) from None
            connection.settimeout(5)
            try:
                rank, fingerprint = json.loads(_read_line(connection))
                if not 0 < rank < len(cluster.tasks):
                    raise ValueError(rank)
            except (OSError, ValueError, TypeError):
                connection.close()  # Not a worker.
                continue
            # A restarted worker replaces its former connection.
            present[rank] = connection
            _check_peer(cluster, rank, fingerprint)
        verdict = _GO
    finally:
        for connection in present.values():
            with connection, contextlib.suppress(OSError):
                connection.sendall(verdict)


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


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _read_line(connection: socket.socket) -> bytes:
    """Reads up to a newline or the end."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 256:
        received = connection.recv(256)
        if not received:
            break
        line += received
    return line
