"""Hosts on one machine: network namespaces that a bridge joins.

Each has an address, a host name, an /etc/hosts and processes of its own, and
shares the files. Needs Linux, root, and the programs ip, unshare and ss.
"""

import contextlib
import heapq
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

# Prints the ports of an address that accept connections.
_SCAN = """
import socket, sys
for port in range(1, 1 << 16):
    with socket.socket() as client:
        client.settimeout(5)
        if not client.connect_ex((sys.argv[1], port)):
            print(port)
"""
_PREFIX = f"h38-{os.getpid()}-"
_NETNS = Path("/etc/netns")  # Where `ip netns exec` finds their /etc/hosts.


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def why_not():
    """Why this machine cannot have hosts; empty: it can."""
    for program in ("ip", "unshare", "ss"):
        if not shutil.which(program):
            return f"there is no {program}"
    try:
        with Network("a"):
            return ""
    except (AssertionError, OSError) as error:
        return str(error)


class Network:
    """Hosts by name, from the first address of 10.38.0.0/24 and fd38::/64 on.

    `with Network("a", "b") as (a, b):` deletes them at the end.
    """

    def __init__(self, *names):
        self.hosts = [Host(name, i + 1) for i, name in enumerate(names)]

    def __enter__(self):
        try:
            _run("ip", "netns", "add", _SWITCH)
            _switch("link", "add", "bridge", "type", "bridge")
            _switch("link", "set", "bridge", "up")
            for host in self.hosts:
                host.boot()
                host.name_hosts(
                    {each.name: each.address for each in self.hosts}
                )
        except BaseException:
            self.__exit__()
            raise
        return self.hosts

    def __exit__(self, *_):
        for host in self.hosts:
            host.normal()
            host.lose()
            shutil.rmtree(_NETNS / host.space, ignore_errors=True)
        with contextlib.suppress(AssertionError):
            _run("ip", "netns", "delete", _SWITCH)
        with contextlib.suppress(OSError):
            _NETNS.rmdir()


_SWITCH = f"{_PREFIX}switch"


def _switch(*words):
    _run("ip", "-n", _SWITCH, *words)


class Host:
    """A machine of a network.

    Attributes:
      name: of the host.
      address, address6: its IPv4 and IPv6 address.
      space: the name of its network namespace.
    """

    def __init__(self, name, number):
        self.name = name
        self.address, self.address6 = f"10.38.0.{number}", f"fd38::{number:x}"
        self.space = f"{_PREFIX}{name}"
        self._card = f"02:00:0a:26:00:{number:02x}"  # The same after `boot`.
        self._port = f"port{number}"  # Of the switch.
        self._relay = None

    def boot(self):
        """Makes the host and connects it."""
        _run("ip", "netns", "add", self.space)
        plug = ("eth0", "address", self._card, "type", "veth")
        peer = ("peer", "name", self._port, "netns", _SWITCH)
        self._ip("link", "add", *plug, *peer)
        _switch("link", "set", self._port, "master", "bridge", "up")
        self._ip("link", "set", "lo", "up")
        self._ip("address", "add", f"{self.address}/24", "dev", "eth0")
        self._ip(
            "address", "add", f"{self.address6}/64", "dev", "eth0", "nodad"
        )
        self._ip("link", "set", "eth0", "up")

    def _ip(self, *words):
        return _run("ip", "-n", self.space, *words)

    def name_hosts(self, addresses):
        """Writes its /etc/hosts, from the addresses by name."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        lines += [f"{address} {name}" for name, address in addresses.items()]
        (_NETNS / self.space).mkdir(parents=True, exist_ok=True)
        (_NETNS / self.space / "hosts").write_text("\n".join(lines) + "\n")

    def command(self, *words):
        """The words of a command that runs others on this host.

        They replace each other, so that signals reach the last one.
        """
        inside = ("ip", "netns", "exec", self.space, "unshare", "--uts")
        named = ("sh", "-c", 'hostname "$0" && exec "$@"', self.name)
        return [*inside, *named, *map(str, words)]

    def start(self, *words, **options):
        """Starts a command; the options are those of `subprocess.Popen`."""
        return subprocess.Popen(self.command(*words), **options)

    def listening(self):
        """{"address:port"} of its TCP servers."""
        lines = _run("ip", "netns", "exec", self.space, "ss", "-Hltn")
        return {line.split()[3] for line in lines.splitlines()}

    def open_ports(self, other):
        """The TCP ports of another host that this one can connect to."""
        scan = (sys.executable, "-c", _SCAN, other.address)
        process = self.start(*scan, stdout=subprocess.PIPE)
        return {*map(int, process.communicate()[0].split())}

    def cut(self):
        """Pulls its cable: nothing reaches it, and it reaches nothing."""
        _switch("link", "set", self._port, "nomaster")

    def restore(self):
        """Connects it again."""
        _switch("link", "set", self._port, "master", "bridge")

    def blackhole(self, address):
        """Loses what this host sends to an address, without a message."""
        self._ip("route", "add", "blackhole", address)

    def lose(self):
        """Takes the host away, as a power failure does.

        Its processes cannot end their connections.
        """
        with contextlib.suppress(AssertionError):
            self._ip("link", "delete", "eth0")
        self.kill()
        with contextlib.suppress(AssertionError):
            _run("ip", "netns", "delete", self.space)

    def processes(self):
        """The numbers of its processes."""
        return [*map(int, _run("ip", "netns", "pids", self.space).split())]

    def kill(self):
        """Kills all of its processes."""
        with contextlib.suppress(AssertionError):
            while found := self.processes():
                for number in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                time.sleep(0.05)

    def slow(self, *, delay=0.0, loss=0.0, rate=1e12, drop=()):
        """Puts a relay into its cable, until `normal`.

        Args:
          delay: of every frame in each direction, in seconds.
          loss: the part of the frames that are lost.
          rate: bytes in a second, in each direction.
          drop: TCP ports whose frames are lost, as a firewall does it.
        """
        self.normal()
        inner, outer = f"in{self._port}", f"out{self._port}"
        _switch("link", "add", inner, "type", "veth", "peer", "name", outer)
        _switch("link", "set", inner, "up")
        _switch("link", "set", outer, "master", "bridge", "up")
        _switch("link", "set", self._port, "nomaster")
        numbers = map(str, (delay, loss, rate, *drop))
        relay = (sys.executable, __file__, self._port, inner, *numbers)
        self._relay = subprocess.Popen(
            ["ip", "netns", "exec", _SWITCH, *relay], stdout=subprocess.PIPE
        )
        assert self._relay.stdout.readline() == b"ready\n"

    def normal(self):
        """Takes the relay out again."""
        if self._relay:
            self._relay.kill()
            self._relay.communicate()
            self._relay = None
            with contextlib.suppress(AssertionError):
                _switch("link", "delete", f"in{self._port}")
                _switch("link", "set", self._port, "master", "bridge")


# ---- The relay, a program of its own -----------------------------------------

# SOL_PACKET, PACKET_VNET_HDR: frames keep what the card would compute.
_VNET_HEADER = 263, 15
_HEADER_BYTES = 10


def _ports(frame):
    """The TCP ports of a frame, both; none of other frames."""
    kind = frame[12:14]
    if kind == b"\x08\x00" and frame[23] == socket.IPPROTO_TCP:
        start = 14 + 4 * (frame[14] & 15)
    elif kind == b"\x86\xdd" and frame[20] == socket.IPPROTO_TCP:
        start = 14 + 40
    else:
        return ()
    return struct.unpack("!HH", frame[start : start + 4])


def _socket(name):
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    found.setsockopt(*_VNET_HEADER, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    found.bind((name, 3))  # ETH_P_ALL
    return found


def _relay_one_way(source, sink, delay, loss, rate, dropped):
    """Moves frames, each `delay` seconds after the link has taken it."""
    waiting, free, order = [], 0.0, 0
    draw = random.Random(0)
    while True:
        left = waiting[0][0] - time.monotonic() if waiting else 1.0
        source.settimeout(max(left, 1e-4))
        with contextlib.suppress(TimeoutError):
            # Frames that this socket's interface sends are not for the other.
            data, (*_, kind, _, _) = source.recvfrom(1 << 17)
            frame = data[_HEADER_BYTES:]
            if (
                kind != socket.PACKET_OUTGOING
                and draw.random() >= loss
                and dropped.isdisjoint(_ports(frame))
            ):
                free = max(free, time.monotonic()) + len(frame) / rate
                order += 1
                heapq.heappush(waiting, (free + delay, order, data))
        while waiting and waiting[0][0] <= time.monotonic():
            with contextlib.suppress(OSError):
                sink.send(heapq.heappop(waiting)[-1])


def _relay(near, far, delay, loss, rate, *dropped):
    a, b = _socket(near), _socket(far)
    numbers = float(delay), float(loss), float(rate), {int(p) for p in dropped}
    for ends in ((a, b), (b, a)):
        threading.Thread(target=_relay_one_way, args=(*ends, *numbers)).start()
    print("ready", flush=True)


if __name__ == "__main__":
    _relay(*sys.argv[1:])
