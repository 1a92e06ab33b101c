"""Start-up barrier: no worker proceeds until all reach each other.

Each task listens on its own port, which TensorFlow's server uses afterwards.
The others report to the first one. Once all have, each connects to each, and
the first one lets all go on, or tells all why not.
"""

import concurrent.futures
import contextlib
import errno
import hashlib
import ipaddress
import json
import re
import select
import socket
import time
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors, installation, terminal
from tf_contrastive.distribution.cluster import Cluster

# What workers must share, beside the cluster.
_VERSIONS = (
    f"tf_contrastive {installation.VERSION} and TensorFlow {tf.__version__}"
)
# Asks a worker whether it reaches all others.
_CHECK = "check"
# How long a stranger may take to send a line, and a line's length.
_HELLO_SECONDS = 5.0
_LINE_BYTES = 16384
# How long a worker may take to be reached, and to say whether it reaches all.
_REACH_SECONDS = 5.0
_CHECK_SECONDS = 20.0
# A lost host answers no probes: seconds before and between them, and number.
_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
# Seconds without an answer until a worker says for whom it waits.
_SILENT_SECONDS = 10.0


class AbsentWorkerError(errors.InterruptedRunError):
    """Workers did not start in time, or were lost before all had started."""


def wait_for_all(cluster: Cluster, timeout: float) -> None:
    """Waits until every process of the cluster runs and reaches the others.

    Args:
      cluster: of this process; must be equal on all of them.
      timeout: in seconds.

    Raises:
      AbsentWorkerError: naming the tasks that did not start in time.
      UserError: naming a task that cannot be reached, or differs.
    """
    deadline = time.monotonic() + timeout
    others = len(cluster.tasks) - 1
    with _listen(cluster) as server:
        try:
            if cluster.rank:
                _report(cluster, server, deadline)
            elif others:
                terminal.info(
                    f"workers    waiting for {others} more, at most"
                    f" {timeout:g} s"
                )
                _Gathering(cluster, server, deadline).run()
        except TimeoutError as error:
            raise AbsentWorkerError(
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
            if _is_unreachable(cluster, str(own[0])):
                raise socket.gaierror
            return socket.create_server(
                own[:2], family=socket.AddressFamily(family), backlog=backlog
            )
        except OSError as error:
            # A name that is not known here, or that Debian's /etc/hosts gives
            # to 127.0.1.1, or an address that is forwarded to this machine:
            # reached through any of its interfaces.
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


def _is_unreachable(cluster: Cluster, address: str) -> bool:
    """Whether workers on other hosts cannot connect to this address."""
    hosts = {_split(other)[0] for _, other in cluster.tasks}
    return ipaddress.ip_address(address).is_loopback and len(hosts) > 1


def _fingerprint(cluster: Cluster) -> str:
    return hashlib.sha256(repr(cluster.tasks).encode()).hexdigest()


class _Gathering:
    """The first task, to which the others report.

    Args:
      cluster: of this process.
      server: its socket.
      deadline: of `time.monotonic`.
    """

    def __init__(
        self, cluster: Cluster, server: socket.socket, deadline: float
    ) -> None:
        self._cluster = cluster
        self._server = server
        self._deadline = deadline
        self._present: dict[int, socket.socket] = {}
        # Connection -> what it has sent, and until when it may send.
        self._pending: dict[socket.socket, tuple[bytes, float]] = {}

    def run(self) -> None:
        """Returns once all others have reported, and reach each other."""
        verdict: list[Any] = [AbsentWorkerError.status, "it ended"]
        try:
            while True:
                self._wait()
                if self._reach():
                    break
            verdict = [0, ""]
        except TimeoutError as error:
            verdict = [AbsentWorkerError.status, str(error)]
            raise
        except errors.UserError as error:
            verdict = [error.status, str(error)]
            raise
        finally:
            for connection in self._pending:
                connection.close()
            for connection in self._present.values():
                with connection, contextlib.suppress(OSError):
                    _send(connection, verdict)

    def _wait(self) -> None:
        """Waits until all others have reported."""
        others = len(self._cluster.tasks) - 1
        while len(self._present) < others:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(self._absent())
            ranks = {x: rank for rank, x in self._present.items()}
            watched = [self._server, *self._pending, *ranks]
            for connection in select.select(watched, [], [], min(left, 1.0))[0]:
                if connection is self._server:
                    accepted, _ = self._server.accept()
                    until = time.monotonic() + _HELLO_SECONDS
                    self._pending[accepted] = b"", until
                elif connection in ranks:
                    # They send nothing until they are asked: it has ended.
                    self._drop(ranks[connection])
                else:
                    self._read(connection)
            for connection, (_, until) in list(self._pending.items()):
                if time.monotonic() > until:
                    del self._pending[connection]
                    connection.close()

    def _drop(self, rank: int) -> None:
        self._present.pop(rank).close()

    def _read(self, connection: socket.socket) -> None:
        """Reads from a connection that has not reported yet."""
        line, until = self._pending.pop(connection)
        with contextlib.suppress(OSError):
            line += (received := connection.recv(_LINE_BYTES))
            if received and b"\n" not in line:
                if len(line) < _LINE_BYTES:
                    self._pending[connection] = line, until
                    return
            elif hello := _hello(self._cluster, line):
                # A restarted worker replaces its former connection.
                if hello[0] in self._present:
                    self._drop(hello[0])
                self._present[hello[0]] = connection
                _probe(connection)
                _check_peer(self._cluster, *hello)
                return
        connection.close()

    def _reach(self) -> bool:
        """Whether every worker reaches every other; False: one is gone.

        Raises:
          UserError: if two that are there do not reach each other.
        """
        for connection in self._present.values():
            with contextlib.suppress(OSError):
                _send(connection, _CHECK)
        own = _unreached(self._cluster)
        until = time.monotonic() + _CHECK_SECONDS
        told = {0: own} if own else {}
        for rank, connection in list(self._present.items()):
            try:
                connection.settimeout(max(until - time.monotonic(), 0.001))
                if answer := json.loads(_read_line(connection)):
                    told[rank] = str(answer)
            except (OSError, ValueError):
                self._drop(rank)
        if len(self._present) < len(self._cluster.tasks) - 1:
            return False
        for rank, fault in sorted(told.items()):
            name, address = self._cluster.tasks[rank]
            raise errors.UserError(
                f"{self._cluster.origin}: {name} ({address}) cannot connect to"
                f" {fault}: both run, so set an address that all workers can"
                " connect to, or open its port to them in the firewall"
            )
        return True

    def _absent(self) -> str:
        """Describes the tasks that did not report."""
        tasks = self._cluster.tasks
        absent = [
            f"{name} ({address})"
            for rank, (name, address) in enumerate(tasks)
            if rank and rank not in self._present
        ]
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        return (
            f"{len(absent)} of {len(tasks)} did not start, or ended:"
            f" {', '.join(absent[:3])}{more}"
        )


def _hello(cluster: Cluster, line: bytes) -> tuple[int, str, str] | None:
    """Returns rank, fingerprint and versions of a worker; None: it is none."""
    try:
        rank, fingerprint, versions = json.loads(line)
    except (ValueError, TypeError):
        return None
    is_rank = isinstance(rank, int) and 0 < rank < len(cluster.tasks)
    is_hash = re.fullmatch("[0-9a-f]{64}", str(fingerprint))
    return (rank, fingerprint, str(versions)) if is_rank and is_hash else None


def _check_peer(
    cluster: Cluster, rank: int, fingerprint: str, versions: str
) -> None:
    (first, _), (name, _) = cluster.tasks[0], cluster.tasks[rank]
    if fingerprint != _fingerprint(cluster):
        raise errors.UserError(
            f"{cluster.origin}: {name} has other addresses than {first}: set"
            " the same cluster on all workers"
        )
    if versions != _VERSIONS:
        raise errors.UserError(
            f"{name} has {versions}, {first} has {_VERSIONS}: install the same"
            " versions on all workers"
        )


def _unreached(cluster: Cluster) -> str:
    """Names a task that this one cannot connect to, and why; empty: none."""

    def fault(rank: int) -> str:
        name, address = cluster.tasks[rank]
        try:
            socket.create_connection(_split(address), _REACH_SECONDS).close()
        except OSError as error:
            return f"{name} at {address} ({error.strerror or error})"
        return ""

    ranks = [i for i in range(len(cluster.tasks)) if i != cluster.rank]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return next(filter(None, pool.map(fault, ranks)), "")


def _report(cluster: Cluster, server: socket.socket, deadline: float) -> None:
    """Reports to the first task and waits for its answer."""
    name, address = cluster.tasks[0]
    hello = cluster.rank, _fingerprint(cluster), _VERSIONS
    silent, reason = time.monotonic() + _SILENT_SECONDS, ""
    while (left := deadline - time.monotonic()) > 0:
        # Another run's server, about to end, may still listen there: only the
        # protocol's own answers count.
        try:
            target, wait = _split(address), min(left, _REACH_SECONDS)
            with socket.create_connection(target, wait) as connection:
                _probe(connection)
                _send(connection, hello)
                reason = " (connected)"
                # The first one's time may have begun later.
                until = deadline + _CHECK_SECONDS
                verdict = _verdict(cluster, server, connection, until)
        except OSError as error:
            verdict, reason = None, f" ({error.strerror or error})"
        if verdict == (0, ""):
            return
        if verdict:
            status, told = verdict
            kind = AbsentWorkerError if status != 2 else errors.UserError
            raise kind(f"{name} ({address}) gave up: {told}")
        if time.monotonic() > silent:
            silent = deadline
            terminal.info(f"workers    waiting for {name} ({address}){reason}")
        time.sleep(0.2)
    raise TimeoutError(f"{name} ({address}) did not answer this worker{reason}")


def _verdict(
    cluster: Cluster,
    server: socket.socket,
    connection: socket.socket,
    deadline: float,
) -> tuple[int, str] | None:
    """Returns (status, reason) from the first task; None: it is gone."""
    while (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([server, connection], [], [], left)
        if server in readable:
            # Another worker, which checks that it reaches this one.
            server.accept()[0].close()
        if connection in readable:
            connection.settimeout(_HELLO_SECONDS)
            try:
                answer = json.loads(_read_line(connection))
                if answer != _CHECK:
                    status, reason = answer
                    return int(status), str(reason)
            except (TypeError, ValueError):
                return None
            _send(connection, _unreached(cluster))
    return None


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


def _probe(connection: socket.socket) -> None:
    """Makes a connection fail once the other host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if number := getattr(socket, name, None):
            connection.setsockopt(socket.IPPROTO_TCP, number, value)


def _send(connection: socket.socket, value: Any) -> None:
    connection.settimeout(_HELLO_SECONDS)
    connection.sendall(json.dumps(value).encode() + b"\n")


def _read_line(connection: socket.socket) -> bytes:
    """Reads up to a newline or the end."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES:
        received = connection.recv(_LINE_BYTES)
        if not received:
            break
        line += received
    return line
