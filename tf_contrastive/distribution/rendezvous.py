"""Start-up barrier: each worker reports to the first one and waits for it.

The first one answers once all have reported and it reaches each at its address,
or once it knows why not. Each listens at the port that TensorFlow's server uses
afterwards.
"""

import contextlib
import hashlib
import json
import select
import socket
import time

import tensorflow as tf

from tf_contrastive.base import errors, installation, terminal
from tf_contrastive.distribution.cluster import Cluster

_START = "start every worker by the same command, each at its own address"
_MESSAGE_BYTES = 16384
# How long a connection may take.
_REACH_SECONDS = 5.0
# How much later than its own end the first one's answer may come.
ANSWER_SECONDS = 20.0


class AbsentWorkerError(errors.InterruptedRunError):
    """Workers did not start in time, or were lost before all had started."""


def wait_for_all(cluster: Cluster, timeout: float) -> None:
    """Waits up to `timeout` seconds until every process is there.

    Raises:
      AbsentWorkerError: naming the tasks that did not start in time.
      UserError: naming a task that cannot be reached, or differs.
    """
    others = len(cluster.tasks) - 1
    with _listen(cluster) as server:
        if cluster.rank:
            _report(cluster, timeout)
        elif others:
            terminal.info(
                f"workers    waiting for {others} more, at most {timeout:g} s"
            )
            _gather(cluster, server, timeout)


def _listen(cluster: Cluster) -> socket.socket:
    """Listens at the port of this task, as TensorFlow's server will."""
    name, address = cluster.tasks[cluster.rank]
    both = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            ("", cluster.places[cluster.rank][1]),
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


def shared_facts(cluster: Cluster) -> dict[str, str]:
    """What all workers must have in common."""
    addresses = repr(cluster.tasks).encode()
    return {
        "the addresses": hashlib.sha256(addresses).hexdigest()[:8],
        "tf_contrastive": installation.VERSION,
        "TensorFlow": tf.__version__,
    }


# ---- The first one -----------------------------------------------------------


def _gather(cluster: Cluster, server: socket.socket, timeout: float) -> None:
    """Waits for the others' reports and answers them: (status, reason)."""
    # Connection -> rank; None: it has not reported.
    ranks: dict[socket.socket, int | None] = {}
    answer = [AbsentWorkerError.status, "it ended"]
    try:
        _collect(cluster, server, timeout, ranks)
        _check_reached(cluster)
        answer = [0, ""]
    except errors.UserError as error:
        answer = [error.status, str(error)]
        raise
    finally:
        for connection, rank in ranks.items():
            with connection, contextlib.suppress(OSError):
                if rank is not None:
                    connection.settimeout(_REACH_SECONDS)
                    connection.sendall(json.dumps(answer).encode())


def _collect(
    cluster: Cluster,
    server: socket.socket,
    timeout: float,
    ranks: dict[socket.socket, int | None],
) -> None:
    """Adds connections until there is one of each rank."""
    deadline, total = time.monotonic() + timeout, len(cluster.tasks)
    while absent := sorted({*range(1, total)} - {*ranks.values()}):
        left = deadline - time.monotonic()
        if left <= 0:
            names = ["{} ({})".format(*cluster.tasks[x]) for x in absent[:3]]
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            raise AbsentWorkerError(
                f"{cluster.origin}: {len(absent)} of {total} did not start, or"
                f" ended: {', '.join(names)}{more} within {timeout:g} s:"
                f" {_START}"
            )
        for connection in select.select([server, *ranks], [], [], left)[0]:
            if connection is server:
                ranks[server.accept()[0]] = None
                continue
            try:
                rank, theirs = json.loads(connection.recv(_MESSAGE_BYTES))
                is_rank = type(rank) is int and 0 < rank < total
            except (OSError, TypeError, ValueError):
                is_rank, theirs = False, None
            # A stranger; or who has reported says nothing more: it has ended.
            if (
                not is_rank
                or not isinstance(theirs, dict)
                or ranks[connection] is not None
            ):
                del ranks[connection]
                connection.close()
                continue
            ranks[connection] = rank
            (first, _), (name, _) = cluster.tasks[0], cluster.tasks[rank]
            for what, own in shared_facts(cluster).items():
                if (other := theirs.get(what)) != own:
                    raise errors.UserError(
                        f"{cluster.origin}: {name} has {what} {other}, {first}"
                        f" {own}: set the same cluster, and install the same"
                        " versions, on all workers"
                    )


def _check_reached(cluster: Cluster) -> None:
    """Raises `UserError` if a worker does not answer at its address."""
    for rank, (name, address) in enumerate(cluster.tasks[1:], 1):
        try:
            place = cluster.places[rank]
            socket.create_connection(place, _REACH_SECONDS).close()
        except OSError as error:
            raise errors.UserError(
                f"{cluster.origin}: {name} runs, but {cluster.tasks[0][0]}"
                f" cannot connect to {address} ({errors.first_line(error)}):"
                " set an address that all workers can connect to, or open its"
                " port to them in the firewall"
            ) from error


# ---- The others --------------------------------------------------------------


def _report(cluster: Cluster, timeout: float) -> None:
    """Reports to the first one until it answers."""
    name, address = cluster.tasks[0]
    terminal.info(
        f"workers    waiting for {name} ({address}), at most {timeout:g} s"
    )
    deadline, reason = time.monotonic() + timeout, ""
    while (left := deadline - time.monotonic()) > 0:
        # Another run's server, about to end, may still listen there: only an
        # answer counts.
        try:
            wait = min(left, _REACH_SECONDS)
            place = cluster.places[0]
            with socket.create_connection(place, wait) as connection:
                report = cluster.rank, shared_facts(cluster)
                connection.sendall(json.dumps(report).encode())
                # It may have started just now, and waits as long.
                connection.settimeout(timeout + ANSWER_SECONDS)
                status, told = json.load(connection.makefile())
        except OSError as error:
            reason = errors.first_line(error)
        except (TypeError, ValueError):
            reason = "no answer of this run"
        else:
            if not status:
                return
            kind = errors.UserError if status == 2 else AbsentWorkerError
            raise kind(f"{name} ({address}) gave up: {told}")
        time.sleep(0.2)
    raise AbsentWorkerError(
        f"{cluster.origin}: {name} ({address}) did not answer this worker"
        f" ({reason}) within {timeout:g} s: {_START}"
    )
