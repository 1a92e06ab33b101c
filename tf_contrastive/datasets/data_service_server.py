"""Servers of TensorFlow's data service: a dispatcher, and workers.

  python -m tf_contrastive.datasets.data_service_server --port=5050
  python -m tf_contrastive.datasets.data_service_server --dispatcher=HOST:5050

The first is a dispatcher, the second a worker; `launch/data_service` starts
both. Workers read the data themselves, so that paths must be valid on their
machines, and need the TensorFlow of the training job.
"""

import argparse
import os
import signal
import sys
import threading

import tensorflow as tf

from tf_contrastive.base import errors


def main() -> int:
    """Starts the server of the flags, and waits."""
    parser = argparse.ArgumentParser("data_service")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--dispatcher", help="HOST:PORT of a worker's")
    parser.add_argument(
        "--host", default="localhost", help="how trainers reach a worker"
    )
    flags = parser.parse_args()
    service = tf.data.experimental.service
    try:
        if flags.dispatcher:
            config = service.WorkerConfig(
                port=flags.port,
                dispatcher_address=flags.dispatcher,
                worker_address=f"{flags.host}:%port%",
                heartbeat_interval_ms=1000,
            )
            server = service.WorkerServer(config)
        else:
            config = service.DispatcherConfig(port=flags.port)
            server = service.DispatchServer(config)
            print(server.target, flush=True)
    except (tf.errors.OpError, RuntimeError) as error:
        reason = errors.first_line(error)
        print(
            f"data_service: cannot start at port {flags.port} ({reason}): if"
            " it is in use, choose another --port",
            file=sys.stderr,
        )
        return 1
    # From now on. Until here a signal ends the process: a worker may wait for
    # a dispatcher that is gone, and Python would not get to a handler.
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    stopped.wait()
    # The destructor of the server would wait for the runs that read from it.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
