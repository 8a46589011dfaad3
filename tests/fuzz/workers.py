"""The targets that are a hostile proxy: they connect to the lane socket of a real worker."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence

from fuzz.lanes import packets, send, stream_packets
from fuzz.target import Finding, Tally, Target
from fuzz.target_daemon import MODEL, STREAMS, TargetDaemon
from fuzz.values import Maker

#: Connections that are open at once.
_ABREAST = 16
_ANSWER_S = 60.0
_PACKET_BYTES = 1 << 17


class WorkerLane(Target):
    """A worker's end of the lane: whatever it receives, it closes that lane and serves the others."""

    name = "worker"
    share = 0.2
    block = 2_000

    def __init__(self, target_daemon: TargetDaemon) -> None:
        self._target_daemon = target_daemon

    def said(self, maker: Maker) -> tuple[str, list[tuple[bytes, list[int]]]]:
        """Return the worker that a case addresses, and its packets."""
        return MODEL, packets(maker)

    def run(self, seed: int, cases: Sequence[int], tally: Tally) -> None:
        """Hold one conversation per case, several at a time."""
        for start in range(0, len(cases), _ABREAST):
            self._converse(seed, cases[start : start + _ABREAST], tally)

    def check(self) -> None:
        """Check that worker and model are unchanged."""
        self._target_daemon.check()

    def _converse(self, seed: int, cases: Sequence[int], tally: Tally) -> None:
        peers = [self._begin(Maker(seed, self.name, case)) for case in cases]
        for case, peer in zip(cases, peers):
            with peer:
                try:
                    tally.add(_answered(peer))
                except socket.timeout:
                    text = f"the worker neither answered nor dropped a lane for {_ANSWER_S:g} s"
                    raise Finding(text, [case]) from None

    def _begin(self, maker: Maker) -> socket.socket:
        model, said = self.said(maker)
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(_ANSWER_S)
        try:
            peer.connect(self._target_daemon.served[model].lane_path)
        except OSError as error:
            raise Finding(f"the worker does not listen any more: {error}") from error
        for place, (data, fds) in enumerate(said):
            try:
                send(peer, data, fds)
            except ConnectionError:
                for _, unsent in said[place + 1 :]:
                    for fd in unsent:
                        os.close(fd)
                return peer
        peer.shutdown(socket.SHUT_WR)
        return peer


class StreamingWorkerLane(WorkerLane):
    """The same with decoupled models: several batches in flight, credits and cancellations of any kind."""

    name = "streams"
    share = 0.1

    def said(self, maker: Maker) -> tuple[str, list[tuple[bytes, list[int]]]]:
        """Return a conversation with one of the two kinds of stream."""
        return maker.random.choice(STREAMS), stream_packets(maker)


def _answered(peer: socket.socket) -> bool:
    """Read until the worker closes the lane; return whether it sent a response."""
    answered = False
    rights_bytes = socket.CMSG_SPACE(8 * array.array("i").itemsize)
    while True:
        try:
            data, ancillary, _, _ = peer.recvmsg(_PACKET_BYTES, rights_bytes)
        except ConnectionError:
            return answered
        for _, _, rights in ancillary:
            for fd in array.array("i", rights):
                os.close(fd)
        if not data:
            return answered
        answered = True
