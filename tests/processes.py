"""Commands in processes of their own: run to the end, start, read, wait, kill.

    done = processes.run(processes.main("export", "--nope"), status=2)

    with processes.start(processes.small("pretrain", *words)) as run:
        run.until("step 8")  # A line of its output, as soon as it comes.
        run.kill(signal.SIGTERM)
        assert run.ended() == 42, run.output

    with processes.start_each(words, small.cluster()) as workers:
        assert [worker.ended() for worker in workers] == [0, 0]

No test waits for a time: it waits for a line, for a file (`wait_for`) or for
the end, and fails after `LIMIT` seconds.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIPE = subprocess.PIPE
# Seconds. Generous, since other tests keep the machine busy.
LIMIT = 300.0
# A program that saves after SIGINT or SIGTERM, as a run does.
SAVES = """
import os, signal
def save(number, frame):
    # print is not reentrant, and the signal may have interrupted one.
    os.write(2, f"saved after {signal.Signals(number).name}\\n".encode())
    os._exit(42)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, save)
print("ready", flush=True)
signal.pause()
"""


def main(*words):
    """The command line of `python -m tf_contrastive`."""
    return [sys.executable, "-m", "tf_contrastive", *map(str, words)]


def small(*words):
    """The command line of the same with a smaller encoder: see `small`."""
    return [sys.executable, "-m", "tests.small", *map(str, words)]


def python(code, *words):
    """The command line of a program's text."""
    return [sys.executable, "-c", code, *map(str, words)]


def run(words, *, status=0, variables=(), cwd=ROOT, **options):
    """Runs a command to its end.

    Args:
      words: the command line.
      status: the exit status that it must have; None: any.
      variables: what its environment has beyond this one's.
      cwd: its folder.
      **options: others of `subprocess.run`.

    Returns:
      The `CompletedProcess`, with `stdout` and `stderr` as texts.
    """
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        **{
            "env": {**os.environ, **dict(variables)},
            "capture_output": True,
            "text": True,
            "timeout": LIMIT,
            "check": False,
            **options,
        },
    )
    if status is not None:
        output = f"{done.stdout}\n{done.stderr}"
        assert done.returncode == status, f"{done.returncode}: {output}"
    return done


# A finder that fails: nothing may import TensorFlow.
_WITHOUT_TENSORFLOW = """
import contextlib, io, json, sys
import tf_contrastive  # It looks for TensorFlow, and does not import it.
assert "tensorflow" not in sys.modules
sys.modules["tensorflow"] = None
from {package}.__main__ import main
outcomes = []
for words in json.load(sys.stdin):
    sys.argv = ["{package}", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main()
    outcomes.append([status, out.getvalue(), err.getvalue()])
json.dump(outcomes, sys.stdout)
"""


def outcomes(lines, package="tf_contrastive"):
    """(line, (status, stdout, stderr)) of each, where TensorFlow is absent."""
    done = run(
        python(_WITHOUT_TENSORFLOW.format(package=package)),
        input=json.dumps([shlex.split(line) for line in lines]),
    )
    return zip(lines, json.loads(done.stdout), strict=True)


class Process:
    """A command that runs; what it prints is read while it does."""

    def __init__(self, words, *, variables=(), cwd=ROOT, **options):
        self._process = subprocess.Popen(
            [*map(str, words)],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Its children end with it: see `stop`.
            start_new_session=True,
            **{"env": {**os.environ, **dict(variables)}, **options},
        )
        self.pid = self._process.pid
        self.stdin = self._process.stdin
        self._lines = []
        self._next = 0  # The line after the one that `until` returned.
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()

    @property
    def output(self):
        """What it has printed to both streams."""
        return "".join(self._lines)

    def running(self):
        """Whether it has not ended."""
        return self._process.poll() is None

    def until(self, text):
        """Waits for a line with a text, after the one returned before it."""
        end = time.monotonic() + LIMIT
        with self._news:
            while time.monotonic() < end:
                ended = not self._reader.is_alive()
                for line in self._lines[self._next :]:
                    self._next += 1
                    if text in line:
                        return line
                if ended:
                    break
                self._news.wait(0.1)
        raise AssertionError(f"there is no line with {text!r}:\n{self.output}")

    def kill(self, number=signal.SIGKILL):
        """Sends a signal to it, and not to its children."""
        self._process.send_signal(number)

    def ended(self):
        """Waits for its end; returns its exit status."""
        status = self._process.wait(timeout=LIMIT)
        self._reader.join(LIMIT)
        return status

    def stop(self):
        """Kills it and the children that it has left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.ended()
        self._process.stdout.close()


@contextlib.contextmanager
def start(words, **options):
    """Yields a `Process`, which ends with the block."""
    process = Process(words, **options)
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def start_each(words, environments, starts=()):
    """Yields a `Process` for each worker.

    Args:
      words: the command line, in which {} is the number of the worker.
      environments: the variables of each, as of `small.cluster`.
      starts: what starts each; by default `start`.
    """
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                (starts[i] if starts else start)(
                    [str(word).replace("{}", str(i)) for word in words],
                    variables=variables,
                )
            )
            for i, variables in enumerate(environments)
        ]


def finish_each(words, environments, status=0, starts=()):
    """Runs workers to their end; returns their outputs."""
    with start_each(words, environments, starts) as workers:
        for worker in workers:
            assert worker.ended() == status, worker.output
        return [worker.output for worker in workers]


def wait_for(condition, *running):
    """Waits until a condition holds, and returns its value.

    Args:
      condition: a function.
      *running: each a `Process`, which must not end before.
    """
    end = time.monotonic() + LIMIT
    while not (value := condition()):
        for process in running:
            assert process.running(), process.output
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.002)
    return value
