"""Hosts on one machine: network namespaces that a bridge joins.

Each has an address, a host name, an /etc/hosts and processes of its own, and
shares the files. Needs Linux, root, and the programs ip and unshare.
"""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from tests import processes

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
    return processes.run(words).stdout


def why_not():
    """Why this machine cannot have hosts; empty: it can."""
    for program in ("ip", "unshare"):
        if not shutil.which(program):
            return f"there is no {program}"
    try:
        with Network("a"):
            return ""
    except (AssertionError, OSError) as error:
        return str(error)


class Network:
    """Hosts by name, from the first address of 10.38.0.0/24 on.

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
      address: its IPv4 address.
      space: the name of its network namespace.
    """

    def __init__(self, name, number):
        self.name = name
        self.address = f"10.38.0.{number}"
        self.space = f"{_PREFIX}{name}"
        self._card = f"02:00:0a:26:00:{number:02x}"  # The same after `boot`.
        self._port = f"port{number}"  # Of the switch.

    def boot(self):
        """Makes the host and connects it."""
        _run("ip", "netns", "add", self.space)
        plug = ("eth0", "address", self._card, "type", "veth")
        peer = ("peer", "name", self._port, "netns", _SWITCH)
        self._ip("link", "add", *plug, *peer)
        _switch("link", "set", self._port, "master", "bridge", "up")
        self._ip("link", "set", "lo", "up")
        self._ip("address", "add", f"{self.address}/24", "dev", "eth0")
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

    def start(self, words, **options):
        """Starts a command; the options are those of `processes.start`."""
        return processes.start(self.command(*words), **options)

    def open_ports(self, other):
        """The TCP ports of another host that this one can connect to."""
        scan = processes.python(_SCAN, other.address)
        return {*map(int, processes.run(self.command(*scan)).stdout.split())}

    def cut(self):
        """Pulls its cable: nothing reaches it, and it reaches nothing."""
        _switch("link", "set", self._port, "nomaster")

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
