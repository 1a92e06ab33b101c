"""Servers of TensorFlow's data service: a dispatcher, and workers.

  python -m tf_contrastive.datasets.data_service_server --port=5050
  python -m tf_contrastive.datasets.data_service_server --dispatcher=HOST:5050

The first is a dispatcher, the second a worker. Each runs until SIGTERM or
Ctrl-C. `launch/data_service` starts one dispatcher and some workers, and
restarts a worker that dies, at its port. Workers read the data themselves, so
paths must be valid on their machines, and run the TensorFlow of the training
job.
"""

import os
import signal
import sys
import threading

import tensorflow as tf
from absl import flags

from tf_contrastive import errors

_FLAGS = flags.FlagValues()
_PORT = flags.DEFINE_integer(
    "port", 0, "port of the server; 0: any free one", flag_values=_FLAGS
)
_DISPATCHER = flags.DEFINE_string(
    "dispatcher",
    "",
    "HOST:PORT of a worker's dispatcher; empty: start a dispatcher",
    flag_values=_FLAGS,
)
_HOST = flags.DEFINE_string(
    "host",
    "localhost",
    "name by which trainers reach a worker",
    flag_values=_FLAGS,
)


def main(argv: list[str]) -> int:
    """Starts the server of the flags, and waits."""
    try:
        _FLAGS(argv)
    except flags.Error as error:
        print(f"data_service: {error}", file=sys.stderr)
        return 2
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    service = tf.data.experimental.service
    try:
        if _DISPATCHER.value:
            config = service.WorkerConfig(
                port=_PORT.value,
                dispatcher_address=_DISPATCHER.value,
                worker_address=f"{_HOST.value}:%port%",
                heartbeat_interval_ms=1000,
            )
            server = service.WorkerServer(config)
        else:
            config = service.DispatcherConfig(port=_PORT.value)
            server = service.DispatchServer(config)
            print(server.target, flush=True)
    except (tf.errors.OpError, RuntimeError) as error:
        reason = errors.first_line(error)
        print(f"data_service: cannot start ({reason})", file=sys.stderr)
        return 1
    stopped.wait()
    # The destructor of the server would wait for the runs that read from it.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
