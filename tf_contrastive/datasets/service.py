"""Servers of TensorFlow's data service: a dispatcher, and workers.

  python -m tf_contrastive.datasets.service dispatcher --port=5050
  python -m tf_contrastive.datasets.service worker --dispatcher=HOST:5050

Each runs until SIGTERM or Ctrl-C. `launch/data_service` starts one dispatcher
and some workers, and a worker that dies again: runs that were reading from it
wait until it is back at its port. Workers read the data themselves, so paths
must be good on their machines, and run the TensorFlow of the training job.
"""

import argparse
import os
import signal
import sys
import threading

import tensorflow as tf

_SERVICE = tf.data.experimental.service


def _dispatcher(options: argparse.Namespace) -> _SERVICE.DispatchServer:
    return _SERVICE.DispatchServer(_SERVICE.DispatcherConfig(port=options.port))


def _worker(options: argparse.Namespace) -> _SERVICE.WorkerServer:
    return _SERVICE.WorkerServer(
        _SERVICE.WorkerConfig(
            port=options.port,
            dispatcher_address=options.dispatcher,
            worker_address=f"{options.host}:%port%",
            heartbeat_interval_ms=1000,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tf_contrastive.datasets.service",
        description="A server of TensorFlow's data service.",
    )
    commands = parser.add_subparsers(required=True)
    dispatcher = commands.add_parser("dispatcher")
    dispatcher.set_defaults(start=_dispatcher)
    dispatcher.add_argument("--port", type=int, default=0, help="0: any")
    worker = commands.add_parser("worker")
    worker.set_defaults(start=_worker)
    worker.add_argument("--port", type=int, default=0, help="0: any")
    worker.add_argument("--dispatcher", required=True, help="HOST:PORT")
    worker.add_argument(
        "--host", default="localhost", help="by which trainers reach it"
    )
    return parser


def main() -> int:
    """Starts the server that the arguments name, and waits."""
    options = _parser().parse_args()
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    try:
        server = options.start(options)
    except (tf.errors.OpError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        print(f"data_service: cannot start ({reason})", file=sys.stderr)
        return 1
    if isinstance(server, _SERVICE.DispatchServer):
        print(server.target, flush=True)
    stopped.wait()
    # A server's own end would wait for the runs that read from it.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
