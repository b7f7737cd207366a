"""Compare ways to receive (docs/decisions/0005): frames of 32 KiB from a blocking sender into ten segments, on an event loop.

    python benchmarks/receive_bench.py [--megabytes 1000] [--rounds 5]

copy N   recv_into one buffer of N KiB, parse in place, copy the payload into its segment
direct   recv_into the header, then recv_into straight into the segment: no copy, two system calls a frame at least
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import struct
import subprocess
import sys
import time

SEGMENT = 32 * 1024
LAYOUT = struct.Struct(">iIB16siiiiBBi")
READS_PER_WAKE = 32
"""Limits one turn of the loop to what the larger buffers receive in one."""


class Copying:
    """Receives into one large buffer; a cut frame waits in its segment for the rest."""

    def __init__(self, kibibytes: int) -> None:
        self.buffer = memoryview(bytearray(kibibytes * 1024))
        self.segments = [memoryview(bytearray(SEGMENT)) for _ in range(10)]
        self.head = b""
        self.filled = SEGMENT
        self.frames = 0

    def read(self, sock: socket.socket) -> bool:
        count = sock.recv_into(self.buffer)
        position = 0
        while position < count:
            if self.filled == SEGMENT:
                wanted = LAYOUT.size - len(self.head)
                self.head += self.buffer[position : min(position + wanted, count)]
                position += wanted
                if len(self.head) < LAYOUT.size:
                    break
                LAYOUT.unpack(self.head)
                self.head, self.filled = b"", 0
            taken = min(SEGMENT - self.filled, count - position)
            segment = self.segments[self.frames % 10]
            segment[self.filled : self.filled + taken] = self.buffer[position : position + taken]
            position, self.filled = position + taken, self.filled + taken
            if self.filled == SEGMENT:
                self.frames += 1
        return count == len(self.buffer)


class Direct:
    """Receives the header, then the payload where it belongs."""

    def __init__(self) -> None:
        self.head = memoryview(bytearray(LAYOUT.size))
        self.segments = [memoryview(bytearray(SEGMENT)) for _ in range(10)]
        self.got = 0
        self.frames = 0

    def read(self, sock: socket.socket) -> bool:
        if self.got < LAYOUT.size:
            count = sock.recv_into(self.head[self.got :])
            self.got += count
            if self.got == LAYOUT.size:
                LAYOUT.unpack(self.head)
            return count > 0
        position = self.got - LAYOUT.size
        count = sock.recv_into(self.segments[self.frames % 10][position:])
        self.got += count
        if self.got == LAYOUT.size + SEGMENT:
            self.got, self.frames = 0, self.frames + 1
        return count > 0


async def receive(sock: socket.socket, path: Copying | Direct, frames: int) -> None:
    done, loop = asyncio.Event(), asyncio.get_running_loop()

    def readable() -> None:
        try:
            for _ in range(READS_PER_WAKE):
                if not path.read(sock):
                    break
        except BlockingIOError:
            pass
        if path.frames == frames:
            done.set()

    sock.setblocking(False)
    loop.add_reader(sock, readable)
    await done.wait()
    loop.remove_reader(sock)


def send(port: int, frames: int) -> None:
    header = LAYOUT.pack(LAYOUT.size + SEGMENT, 0xBADC0FFE, 0, bytes(16), 0, 0, 0, 0, 1, 0, SEGMENT)
    frame = header + bytes(SEGMENT)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for _ in range(frames):
            sock.sendall(frame)


def measure(name: str, frames: int) -> tuple[float, float]:
    """Return (MB/s of wall clock, MB/s of the receiver's CPU time)."""
    path = Direct() if name == "direct" else Copying(int(name.split()[1]))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with subprocess.Popen([sys.executable, __file__, "--send", str(port), str(frames)]):
            sock, _ = listener.accept()
            with sock:
                wall, cpu = time.perf_counter(), time.process_time()
                asyncio.run(receive(sock, path, frames))
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    megabytes = frames * SEGMENT / 1e6
    return megabytes / wall, megabytes / cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--send", nargs=2, type=int)
    asked = parser.parse_args()
    if asked.send:
        send(*asked.send)
        return
    frames = asked.megabytes * 1_000_000 // SEGMENT
    results: dict[str, list[tuple[float, float]]] = {}
    for _ in range(asked.rounds):
        for name in ("copy 64", "copy 128", "copy 256", "copy 1024", "direct"):
            results.setdefault(name, []).append(measure(name, frames))
    for name, rounds in results.items():
        walls, cpus = zip(*rounds, strict=True)
        print(
            json.dumps(
                {
                    "path": name,
                    "MB/s": round(statistics.median(walls)),
                    "best": round(max(walls)),
                    "MB/s of CPU": round(statistics.median(cpus)),
                    "best of CPU": round(max(cpus)),
                }
            )
        )


if __name__ == "__main__":
    main()
