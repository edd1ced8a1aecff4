#!/usr/bin/env python3
"""Runs lists of sends and receives over NCCL, and compares what hangs with the verdicts of `sluice schedule --check`.

    nccl_communicators.py --sluice PATH [--mutations N] [--seed N] [--seconds S] [--json FILE]

All ranks are processes that share one GPU. Each message has the communicator and the queue (stream) that the mapping gives
it, and is larger than what NCCL and the network buffer. Three kinds of lists are run on the communicators one, direction,
pair and edge: those of bugs that users reported (a hang in one order, none in the other), those of families, and families of
which one rank issues two adjacent ones in swapped order. A list hangs if no rank's queue ends another item for some seconds; data
is swapped if a receive ends with the bytes of another message. Needs NCCL 2.28 or newer, not PyTorch. Exits with 1 if a
verdict is refuted.
"""

import argparse
import ctypes
import glob
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time

MAPPINGS = ("one", "direction", "pair", "edge")
MESSAGE_BYTES = 32 << 20
MAX_RANKS = 4
CELL = re.compile(r"(\d+)(SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)(\d+)$")

# Lists without ops, stage s on rank s mod the number of ranks, "+" joins a group; and what happens on each mapping. The same
# stand in tests/model/graph/communicator_bugs_test.cc.
BUGS = {
    "pytorch#172668 a": (["0SEND_F1 2RECV_F0", "1SEND_F0 1RECV_F1"], "hang hang hang ok"),
    "pytorch#172668 a, groups": (["0SEND_F1+2RECV_F0", "1SEND_F0+1RECV_F1"], "ok ok ok ok"),
    "pytorch#172668 a, other order": (["0SEND_F1 2RECV_F0", "1RECV_F1 1SEND_F0"], "ok ok ok ok"),
    "pytorch#172668 b": (["2SEND_F1 0SEND_F2 2RECV_B0", "3RECV_F1 3SEND_B0 1RECV_F2"], "hang ok hang ok"),
    "pytorch#195760, p 2 m 2": (
        ["0SEND_F0 0SEND_F1 2RECV_F0 2SEND_F0 2RECV_F1 2SEND_F1", "1RECV_F0 1SEND_F0 1RECV_F1 1SEND_F1 3RECV_F0 3RECV_F1"],
        "hang hang hang ok",
    ),
    "Megatron-LM#5100": (
        ["2SEND_B0+2RECV_F0+0SEND_F0+0RECV_B0", "1SEND_B0+1RECV_F0+1SEND_F0+1RECV_B0"],
        "swap ok swap swap",
    ),
}


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def library(name):
    """Loads a library of the packages nvidia-* or of the loader's path."""
    folders = [folder for path in sys.path for folder in glob.glob(os.path.join(path, "nvidia", "*", "lib"))]
    for file in [os.path.join(folder, name) for folder in folders] + [name]:
        try:
            return ctypes.CDLL(file)
        except OSError:
            continue
    raise RuntimeError(f"{name} was not found in the packages nvidia-* nor on the loader's path")


class Device:
    """CUDA's runtime and NCCL, with errors as exceptions."""

    def __init__(self):
        self.runtime = library("libcudart.so.13")
        self.nccl = library("libnccl.so.2")
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.runtime.cudaGetErrorString.restype = ctypes.c_char_p

    def cuda(self, name, *arguments):
        code = getattr(self.runtime, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {self.runtime.cudaGetErrorString(code).decode()}")

    def comm(self, name, *arguments):
        code = getattr(self.nccl, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {self.nccl.ncclGetErrorString(code).decode()}")

    def new(self, name, *arguments):
        handle = ctypes.c_void_p()
        self.cuda(name, ctypes.byref(handle), *arguments)
        return handle

    def done(self, event):
        return self.runtime.cudaEventQuery(event) == 0


def message_of(cell, ranks, placement):
    """The key of a cell's message: sender and receiver, its stage, whether it is an activation, its microbatch."""
    stage, kind, microbatch = int(cell[0]), cell[1], int(cell[2])
    forward = kind.endswith("F")
    sender = stage if kind.startswith("SEND") else stage + (-1 if forward else 1)
    reader = sender + (1 if forward else -1)
    return placement(sender, ranks), placement(reader, ranks), sender, forward, microbatch


def communicator_of(mapping, message):
    source, target, _, forward, _ = message
    return {
        "one": "one",
        "direction": "activations" if forward else "gradients",
        "pair": f"{min(source, target)}:{max(source, target)}",
        "edge": f"{source}>{target}",
    }[mapping]


def items_of(rows, placement):
    """Per rank: ("op", cell) or ("group", [(send, message), ...])."""
    lists = []
    for row in rows:
        items = []
        for text in row:
            cells = [CELL.match(part).groups() for part in text.split("+")]
            if cells[0][1] in ("F", "B", "I", "W"):
                items.append(("op", cells[0]))
            else:
                items.append(("group", [(c[1].startswith("SEND"), message_of(c, len(rows), placement)) for c in cells]))
        lists.append(items)
    return lists


class Rank:
    """One process: its communicators and streams, and the execution of a list."""

    def __init__(self, rank, progress):
        self.rank, self.progress = rank, progress
        self.device = Device()
        self.device.cuda("cudaSetDevice", 0)
        self.compute = self.device.new("cudaStreamCreateWithFlags", 1)
        self.scratch = self.device.new("cudaMalloc", ctypes.c_size_t(MESSAGE_BYTES))
        self.communicators = {}  # name -> (handle, stream, members)
        self.buffers = []
        self.events = []

    def buffer(self, number):
        while len(self.buffers) <= number:
            self.buffers.append(self.device.new("cudaMalloc", ctypes.c_size_t(MESSAGE_BYTES)))
        return self.buffers[number]

    def event(self, stream):
        event = self.device.new("cudaEventCreateWithFlags", 2)
        self.device.cuda("cudaEventRecord", event, stream)
        self.events.append(event)
        return event

    def post(self, send, buffer, size, peer, name):
        handle, stream, members = self.communicators[name]
        call = "ncclSend" if send else "ncclRecv"
        self.device.comm(call, buffer, ctypes.c_size_t(size), 1, members.index(peer), handle, stream)

    def connect(self, name, identity, members):
        """Creates a communicator and exchanges a message with every peer, which makes NCCL's connections."""
        if self.rank not in members:
            return
        handle, unique = ctypes.c_void_p(), UniqueId.from_buffer_copy(identity)
        self.device.comm("ncclCommInitRank", ctypes.byref(handle), len(members), unique, members.index(self.rank))
        self.communicators[name] = (handle, self.device.new("cudaStreamCreateWithFlags", 1), members)
        self.device.comm("ncclGroupStart")
        for peer in members:
            if peer != self.rank:
                self.post(True, self.scratch, 1 << 16, peer, name)
                self.post(False, self.buffer(0), 1 << 16, peer, name)
        self.device.comm("ncclGroupEnd")
        self.device.cuda("cudaStreamSynchronize", self.communicators[name][1])

    def wait(self, stream, event):
        if event is not None:
            self.device.cuda("cudaStreamWaitEvent", stream, event, 0)

    def run(self, items, mapping, host_waits):
        """Issues the list. Returns the number of receives with other bytes than their message's."""
        finished, arrived, received, number = {}, {}, [], 0
        for kind, content in items:
            if kind == "op":
                stage, what, microbatch = int(content[0]), content[1], int(content[2])
                source = (stage - 1, True, microbatch) if what == "F" else (stage + 1, False, microbatch)
                self.wait(self.compute, arrived.get(source) if what in "FBI" else None)
                self.device.cuda("cudaMemsetAsync", self.scratch, 0, ctypes.c_size_t(1 << 20), self.compute)
                event = self.event(self.compute)
                if what != "W":
                    finished[(stage, what == "F", microbatch)] = event
            else:
                streams = {}
                for send, message in content:
                    name = communicator_of(mapping, message)
                    source, target, stage, forward, microbatch = message
                    buffer, stream = self.buffer(number), self.communicators[name][1]
                    number += 1
                    if send:
                        self.wait(stream, finished.get((stage, forward, microbatch)))
                    value = (stage * 64 + microbatch * 2 + forward + 1) % 251 if send else 255
                    self.device.cuda("cudaMemsetAsync", buffer, value, ctypes.c_size_t(MESSAGE_BYTES), stream)
                    streams.setdefault(name, []).append((send, message, buffer))
                self.device.comm("ncclGroupStart")
                for name, posts in streams.items():
                    for send, message, buffer in posts:
                        self.post(send, buffer, MESSAGE_BYTES, message[1] if send else message[0], name)
                self.device.comm("ncclGroupEnd")
                for name, posts in streams.items():
                    event = self.event(self.communicators[name][1])
                    for send, message, buffer in posts:
                        if not send:
                            arrived[message[2:]] = event
                            received.append((message, buffer))
            if host_waits:
                for _, stream, _ in self.communicators.values():
                    self.device.cuda("cudaStreamSynchronize", stream)
                self.device.cuda("cudaStreamSynchronize", self.compute)
                self.progress.value += 1
        ended = set()
        while len(ended) < len(self.events):
            ended.update(i for i, event in enumerate(self.events) if i not in ended and self.device.done(event))
            self.progress.value = max(self.progress.value, len(ended))
            time.sleep(0.002)
        self.device.cuda("cudaDeviceSynchronize")
        swapped = 0
        for (_, _, stage, forward, microbatch), buffer in received:
            ends = bytearray()
            for offset in (0, MESSAGE_BYTES - 1):
                byte = ctypes.c_ubyte()
                self.device.cuda(
                    "cudaMemcpy", ctypes.byref(byte), ctypes.c_void_p(buffer.value + offset), ctypes.c_size_t(1), 2
                )
                ends.append(byte.value)
            swapped += bytes(ends) != bytes([(stage * 64 + microbatch * 2 + forward + 1) % 251] * 2)
        for event in self.events:
            self.device.cuda("cudaEventDestroy", event)
        self.events = []
        return swapped


def serve(rank, connection, progress):
    os.environ.update(
        NCCL_HOSTID=f"sluice-{rank}",
        NCCL_NET="Socket",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_PROTO="Simple",
        NCCL_MULTI_RANK_GPU_ENABLE="1",
        NCCL_MAX_CTAS="2",
        CUDA_DEVICE_MAX_CONNECTIONS="32",
    )
    try:
        own = Rank(rank, progress)
        connection.send("started")
        while True:
            command, *arguments = connection.recv()
            if command == "connect":
                own.connect(*arguments)
                connection.send("connected")
            else:
                connection.send(own.run(*arguments))
    except EOFError:
        pass
    except Exception as error:  # the parent reports it
        connection.send(error)


class Ranks:
    """The processes. A list that hangs ends them."""

    def __init__(self, seconds):
        self.seconds, self.nccl = seconds, library("libnccl.so.2")
        version = ctypes.c_int()
        self.nccl.ncclGetVersion(ctypes.byref(version))
        self.version = f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}"
        self.start()

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.progress = [context.Value("q", 0, lock=False) for _ in range(MAX_RANKS)]
        self.connections, self.processes, self.created = [], [], set()
        for rank in range(MAX_RANKS):
            here, there = context.Pipe()
            self.processes.append(context.Process(target=serve, args=(rank, there, self.progress[rank]), daemon=True))
            self.processes[-1].start()
            there.close()
            self.connections.append(here)
        for connection in self.connections:
            self.answer(connection)

    def answer(self, connection, limit_s=60.0):
        if not connection.poll(limit_s):
            raise RuntimeError(f"a rank did not answer within {limit_s:.0f} s")
        answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def connect(self, lists, mapping):
        members = {}
        for items in lists:
            for kind, posts in items:
                for _, message in posts if kind == "group" else []:
                    members.setdefault(communicator_of(mapping, message), set()).update(message[:2])
        for name in sorted(members):
            ranks = tuple(sorted(members[name]))
            if (name, ranks) in self.created:
                continue
            unique = UniqueId()
            self.nccl.ncclGetUniqueId(ctypes.byref(unique))
            for rank in ranks:
                self.connections[rank].send(("connect", name, bytes(unique), ranks))
            for rank in ranks:
                self.answer(self.connections[rank])
            self.created = {(other, of) for other, of in self.created if other != name} | {(name, ranks)}

    def run(self, lists, mapping, host_waits):
        """Returns "hang", "swap" or "ok"."""
        self.connect(lists, mapping)
        for progress in self.progress:
            progress.value = 0
        for connection, items in zip(self.connections, lists):
            connection.send(("run", items, mapping, host_waits))
        swapped, pending = 0, set(range(len(lists)))
        total, since = -1, time.monotonic()
        while pending:
            for rank in sorted(pending):
                if self.connections[rank].poll(0.005):
                    swapped += self.answer(self.connections[rank])
                    pending.discard(rank)
            now = sum(progress.value for progress in self.progress) + len(lists) - len(pending)
            if now != total:
                total, since = now, time.monotonic()
            elif time.monotonic() - since > self.seconds:
                self.stop()
                self.start()
                return "hang"
        return "swap" if swapped else "ok"


def loop(stage, ranks):
    return stage % ranks


def vee(stage, ranks):
    return stage if stage < ranks else 2 * ranks - 1 - stage


def verdict(sluice, rows, mapping, wait):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "list.csv")
        with open(file, "w", encoding="utf-8") as out:
            out.write("".join(",".join(row) + "\n" for row in rows))
        command = [sluice, "schedule", file, "--check", "--communicators", mapping, "--wait", wait, "--json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if not result.stdout.startswith("{"):
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
    checks = {check["check"]: check for check in json.loads(result.stdout)["checks"]}
    found = checks[f"communicators: {mapping}"]
    return "hang" if found["cycle"] else "swap" if found["swaps"] else "ok"


def family(sluice, name, *options):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "list.csv")
        subprocess.run([sluice, "schedule", name, *options, "--communication", "-o", file], check=True, capture_output=True)
        with open(file, encoding="utf-8") as text:
            return [line.strip().split(",") for line in text]


def exchanged(rows, generator):
    """Swaps two adjacent sends or receives of a rank: a receive comes earlier or a send later, so that data dependencies hold."""
    rows = [list(row) for row in rows]
    row = generator.choice(rows)
    places = [i for i, cell in enumerate(row) if "_" in cell]
    at = generator.randrange(len(places) - 1)
    first, second = places[at], places[at + 1]
    cells = row[first], row[second]
    if cells[1].find("SEND") < 0:  # the receive comes earlier
        row.insert(first, row.pop(second))
    elif cells[0].find("RECV") < 0:  # the first send comes later
        row.insert(second, row.pop(first))
    else:
        return None  # the op between them needs the receive
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True, help="path of the command")
    parser.add_argument("--mutations", type=int, default=12, help="families with two adjacent ones swapped (default: 12)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4, help="without progress, after which a list hangs (default: 4)")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no further list is run")
    parser.add_argument("--json", help="write the results to this file")
    options = parser.parse_args()

    cases = []
    for name, (rows, expected) in BUGS.items():
        rows = [row.split() for row in rows]
        cases += [(name, rows, loop, mapping, "device", result) for mapping, result in zip(MAPPINGS, expected.split())]
    name = "pytorch#172668 a"
    cases.append((name, [row.split() for row in BUGS[name][0]], loop, "edge", "host", "hang"))
    lists = {
        "1f1b p 4 m 4": (family(options.sluice, "1f1b", "--pp", "4", "--microbatches", "4"), loop),
        "interleaved-1f1b p 2 v 2 m 4": (
            family(options.sluice, "interleaved-1f1b", "--pp", "2", "--vpp", "2", "--microbatches", "4"),
            loop,
        ),
        "zb-v p 2 m 4": (family(options.sluice, "zb-v", "--pp", "2", "--microbatches", "4"), vee),
    }
    generator = random.Random(options.seed)
    while options.mutations > 0:
        name, (rows, placement) = generator.choice(sorted(lists.items()))
        changed = exchanged(rows, generator)
        if changed is not None:
            cases.append((f"{name}, exchanged", changed, placement, generator.choice(MAPPINGS), "device", None))
            options.mutations -= 1
    for name, (rows, placement) in lists.items():
        for mapping in ("one", "edge"):
            for wait in ("device", "host"):
                cases.append((name, rows, placement, mapping, wait, None))

    began, ranks, results, refuted = time.monotonic(), Ranks(options.seconds), [], 0
    for name, rows, placement, mapping, wait, expected in cases:
        if time.monotonic() - began > options.limit:
            print(f"left out for lack of time: {len(cases) - len(results)} lists")
            break
        expected = expected or verdict(options.sluice, rows, mapping, wait)
        start = time.monotonic()
        found = ranks.run(items_of(rows, placement), mapping, wait == "host")
        seconds = time.monotonic() - start
        refuted += found != expected
        note = "" if found == expected else "  REFUTED"
        print(f"{name:<40} {mapping:<10} {wait:<7} {expected:<5} {found:<5} {seconds:6.1f} s{note}", flush=True)
        results.append(
            {"list": name, "communicators": mapping, "wait": wait, "verdict": expected, "measured": found, "rows": rows}
        )
    ranks.stop()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"nccl": ranks.version, "lists": results}, file, indent=1)
    print(f"{len(results)} lists on NCCL {ranks.version}, {refuted} verdicts refuted" if results else "nothing compared")
    return 1 if refuted or not results else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"nccl_communicators.py: {error}")
