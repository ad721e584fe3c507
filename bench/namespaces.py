"""Networks with a rate and a delay, made of network namespaces of this machine.

Rates are those of tc's tbf, delays and rates together those of netem. Where the kernel has no
netem, a relay in this process carries the packets. Needs root, and iproute2. Nothing outside of the
machine is touched; on exit all is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import threading
import time

TUNSETIFF, TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
PACKET = 65000  # bytes: few packets, so that the relay keeps up


class CannotCheckError(RuntimeError):
    """This machine cannot make such a network: it names the command and what it said."""


def system(*words: object) -> None:
    """Run a command of the system; raise CannotCheckError if it fails."""
    text = list(map(str, words))
    try:
        done = subprocess.run(text, check=False, capture_output=True, text=True)
    except OSError as e:
        raise CannotCheckError(f"{' '.join(text)}: {e}") from e
    if done.returncode != 0:
        raise CannotCheckError(f"{' '.join(text)}: {done.stderr.strip()}")


class Relay:
    """Carries packets between TUN devices: from each at a rate, with a delay."""

    def __init__(self, bandwidth: float, delay: float) -> None:
        """Begin without devices; bytes a second, seconds."""
        self._bandwidth, self._delay = bandwidth, delay
        self._files: list[int] = []
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def add(self, device: str) -> None:
        """Create a device; its rank is the number of those before it."""
        try:
            file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            self._files.append(file)
            fcntl.ioctl(
                file, TUNSETIFF, struct.pack("16sH22x", device.encode(), TUN_WITHOUT_HEADER)
            )
        except OSError as e:
            raise CannotCheckError(f"/dev/net/tun: {e}") from e

    def start(self) -> None:
        """Carry packets from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Remove the devices."""
        self._ends = True
        if self._thread.is_alive():
            self._thread.join()
        for file in self._files:
            os.close(file)

    def _run(self) -> None:
        poll = select.poll()
        for file in self._files:
            poll.register(file, select.POLLIN)
        free = dict.fromkeys(self._files, 0.0)
        waiting: list[tuple[float, int, int, bytes]] = []
        number = itertools.count()
        while not self._ends:
            wait = waiting[0][0] - time.perf_counter() if waiting else 0.1
            for file, _ in poll.poll(min(max(wait, 0.0), 0.1) * 1000):
                packet = os.read(file, PACKET)
                to = packet[19] - 1  # the last byte of its address
                if packet[0] >> 4 != 4 or not 0 <= to < len(self._files):
                    continue
                free[file] = max(free[file], time.perf_counter()) + len(packet) / self._bandwidth
                due = free[file] + self._delay
                heapq.heappush(waiting, (due, next(number), self._files[to], packet))
            while waiting and waiting[0][0] <= time.perf_counter():
                _, _, file, packet = heapq.heappop(waiting)
                with contextlib.suppress(BlockingIOError):  # as a full switch: TCP sends it again
                    os.write(file, packet)


class Namespaces:
    """One for each rank, all connected: `with Namespaces(4, gbit=1, delay_ms=2) as network`.

    Attributes:
        kind: what delays and limits: "tbf", "netem" or "relay".
    """

    def __init__(self, ranks: int, gbit: float, delay_ms: float) -> None:
        """Prepare; the rate and the delay are those of what a rank sends."""
        number = os.getpid() % 10000
        self._names = [f"steep{number}r{i}" for i in range(ranks)]
        self._hub = f"steep{number}hub"
        self._gbit, self._delay_ms = gbit, delay_ms
        self._relay: Relay | None = None
        self.kind = "netem" if delay_ms > 0 else "tbf"

    def __enter__(self) -> Namespaces:
        """Make them; raise CannotCheckError."""
        try:
            for name in self._names:
                system("ip", "netns", "add", name)
                system("ip", "-n", name, "link", "set", "lo", "up")
            try:
                self._connect()
            except CannotCheckError as error:
                if "qdisc" not in str(error):
                    raise
                self._connect_by_relay()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self) -> None:
        """Connect them by a bridge, with a queueing discipline at each sender."""
        system("ip", "netns", "add", self._hub)
        system("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
        system("ip", "-n", self._hub, "link", "set", "bridge", "up")
        for i, name in enumerate(self._names):
            peer = ("peer", "name", f"to{i}", "netns", self._hub)
            system("ip", "link", "add", "eth0", "netns", name, "type", "veth", *peer)
            system("ip", "-n", self._hub, "link", "set", f"to{i}", "master", "bridge", "up")
            self._open(name, "eth0", i)
            rate = ("rate", f"{self._gbit}gbit")
            root = ("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", self.kind)
            if self.kind == "netem":
                system(*root, "delay", f"{self._delay_ms}ms", *rate, "limit", 100000)
            else:
                system(*root, *rate, "burst", "256kb", "latency", "200ms")

    def _connect_by_relay(self) -> None:
        self.kind = "relay"
        self._relay = Relay(self._gbit * 1e9 / 8, self._delay_ms / 1000)
        for i, name in enumerate(self._names):
            system("ip", "netns", "del", name)  # with what _connect() began
            system("ip", "netns", "add", name)
            system("ip", "-n", name, "link", "set", "lo", "up")
            device = f"{self._hub[:-3]}t{i}"
            self._relay.add(device)
            system("ip", "link", "set", device, "netns", name)
            system("ip", "-n", name, "link", "set", device, "mtu", PACKET)
            self._open(name, device, i)
        self._relay.start()

    def _open(self, name: str, device: str, rank: int) -> None:
        system("ip", "-n", name, "address", "add", f"{self.address(rank)}/24", "dev", device)
        system("ip", "-n", name, "link", "set", device, "up")

    def address(self, rank: int) -> str:
        """Return the address of a rank."""
        return f"10.77.0.{rank + 1}"

    def inside(self, rank: int) -> list[str]:
        """Return the words before a command of this rank."""
        return ["ip", "netns", "exec", self._names[rank]]

    def __exit__(self, *_: object) -> None:
        """Remove them, and all that is in them."""
        if self._relay is not None:
            self._relay.stop()
        for name in (*self._names, self._hub):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
