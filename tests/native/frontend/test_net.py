"""net/ of the frontend with an echo server (net_echo.c), under AddressSanitizer and ThreadSanitizer."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import ExitStack, closing, suppress

import pytest
from support.frontend.echo import EchoServer, Start, all_echo, ask, echoes, ends, reset, take
from support.real_daemon import eventually

_BIG = 20_000_000  # more than any socket takes at once


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_lines_are_answered_in_order(start: Start, family: str) -> None:
    """Including lines that arrive together or in pieces."""
    server = start(family=family, loops=2)
    with closing(server.connect()) as connection:
        ask(connection, "echo 1\nthread 100000\necho 2\nkeep 5\nwrite 100000\necho 3")
        connection.sendall(b"ec")
        expected = b"1\n" + b"x" * 100_000 + b"2\n" + b"x" * 5 + b"x" * 100_000 + b"3\n"
        assert take(connection, len(expected)) == expected
        connection.sendall(b"ho 4\nwho\n")
        peer = "unix:" if family == "unix" else f"127.0.0.1:{connection.getsockname()[1]}"
        said = f"4\nplain {peer}\n".encode()
        assert take(connection, len(said)) == said
    server.end()
    assert server.refused == {}


@pytest.mark.parametrize("how", ["write", "keep", "thread", "finish"])
def test_a_late_reader_gets_the_whole_response(start: Start, how: str) -> None:
    server = start("unsent_bytes=30000000")
    with closing(server.connect()) as connection, closing(server.connect()) as other:
        ask(connection, f"{how} {_BIG}")
        for _ in range(3):
            assert echoes(other)  # the server serves others in the meantime
        assert take(connection, _BIG + 1).count(b"x") == _BIG if how == "finish" else True
        if how != "finish":
            assert take(connection, _BIG) == b"x" * _BIG
            assert echoes(connection)
    server.end()
    assert server.refused == {}


def test_a_client_that_reads_nothing_is_disconnected(start: Start) -> None:
    """One that reads slowly is not."""
    # A socket becomes writable again only when a third of its buffer is free: the server notices at most one read in
    # ten, and a busy machine adds to the time between them.
    server = start("unsent_s=20", "unsent_bytes=30000000")
    with closing(server.connect()) as slow, closing(server.connect()) as stopped:
        ask(stopped, f"write {_BIG}")
        ask(slow, f"keep {_BIG}")
        got = 0
        reset = select.poll()
        reset.register(stopped, 0)  # errors only
        while not reset.poll(100):
            got += len(take(slow, 80_000))
        with pytest.raises(ConnectionError):
            take(stopped, _BIG)
        assert len(take(slow, _BIG - got)) == _BIG - got
    server.end()
    assert server.refused == {"unsent_time": 1}


def test_the_newest_response_is_kept_regardless_of_its_size(start: Start) -> None:
    """It has just been produced; so are earlier ones of a client that reads in time."""
    server = start("unsent_bytes=4000000", "unsent_s=1000000")
    with closing(server.connect()) as connection, closing(server.connect()) as other:
        ask(connection, f"whole {_BIG}")
        ask(connection, f"whole {_BIG}")
        assert echoes(other)  # which comes later: nothing has been read until then
        assert take(connection, 2 * _BIG) == b"x" * 2 * _BIG
        assert echoes(connection)
    server.end()
    assert server.refused == {}


def test_the_unread_limit_of_a_client_is_enforced(start: Start) -> None:
    server = start("unsent_bytes=100000", "output_bytes=200000", "unsent_s=1000000")
    with closing(server.connect()) as connection, closing(server.connect()) as other:
        ask(connection, f"keep {_BIG}")
        assert echoes(other)  # which comes later: nothing has been read until then
        with pytest.raises(ConnectionError):
            take(connection, _BIG)
    server.end()
    assert server.refused == {"unsent_bytes": 1}


def test_a_response_reaches_a_client_that_is_still_sending(start: Start) -> None:
    """Closing a socket with unread data would reset the connection and lose the response."""
    server = start()
    with closing(server.connect()) as connection:
        ask(connection, "finish 1000000")
        with suppress(ConnectionError):
            connection.sendall(b"y" * 5_000_000)
        connection.shutdown(socket.SHUT_WR)
        assert take(connection, 1_000_001) == b"x" * 1_000_000
    server.end()


def test_a_client_that_never_stops_sending_is_disconnected(start: Start) -> None:
    server = start()
    with closing(server.connect()) as connection:
        ask(connection, "finish 5")
        with pytest.raises(ConnectionError):
            send_for_ever(connection)
    server.end()


def send_for_ever(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"y" * 100_000)


def test_a_large_upload_does_not_block_other_clients(start: Start) -> None:
    server = start()
    with closing(server.connect()) as connection, closing(server.connect()) as other:
        ask(connection, f"read {3 * _BIG}")
        sender = threading.Thread(target=connection.sendall, args=(b"y" * 3 * _BIG,))
        sender.start()
        while sender.is_alive():
            assert echoes(other)
        sender.join()
        assert take(connection, 5) == b"read\n"
        assert echoes(connection)
    server.end()


def test_vanished_clients_are_counted(start: Start) -> None:
    """Another thread still has a reference, and responds later."""
    server = start()
    waiting = server.connect()
    ask(waiting, "echo hello\nsleep")
    assert take(waiting, 6) == b"hello\n"
    reset(waiting)
    assert echoes_elsewhere(server)
    with closing(server.connect()) as waker:
        ask(waker, "sleep")
        assert take(waker, 5) == b"xxxxx"
    server.end()
    assert server.counts["gone"] == 1


def echoes_elsewhere(server: EchoServer) -> bool:
    with closing(server.connect()) as connection:
        return echoes(connection)


def test_resets_at_any_moment_leak_nothing(start: Start) -> None:
    server = start(loops=2)
    for _ in range(30):
        connections = [server.connect() for _ in range(10)]
        for number, connection in enumerate(connections):
            ask(
                connection,
                ("thread 300000", "write 5000000", "keep 5000000", "echo x", "finish 9")[
                    number % 5
                ],
            )
        for connection in connections:
            reset(connection)
    assert echoes_elsewhere(server)
    server.end()
    assert server.counts["opened"] <= 301 == server.counts["accepted"]


def test_a_deadline_ends_a_connection_unless_it_is_set_again(start: Start) -> None:
    server = start()
    with closing(server.connect()) as connection, closing(server.connect()) as other:
        ask(other, "deadline 100\ndeadline 100000")
        ask(connection, "deadline 60000")  # then it is moved forward
        ask(connection, "deadline 100")
        assert ends(connection)
        assert echoes(other)
    server.end()
    assert server.refused == {"idle_time": 1}


@pytest.mark.parametrize("loops", [1, 3])
def test_two_thousand_connections_are_served(start: Start, loops: int) -> None:
    server = start(loops=loops)
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(server.connect())) for _ in range(2000)]
        assert all_echo(connections)
        for connection in connections:
            ask(connection, "thread 10")
        assert all(take(connection, 10) == b"x" * 10 for connection in connections)
    server.end()
    assert server.counts["opened"] == 2000


def test_the_number_of_connections_is_limited(start: Start) -> None:
    server = start("connections=3")
    with ExitStack() as stack:
        allowed = [stack.enter_context(closing(server.connect())) for _ in range(3)]
        assert all_echo(allowed)
        with closing(server.connect()) as refused:
            assert take(refused, 100) == b"too many\n"
        reset(allowed.pop())
        eventually(
            lambda: echoes_or_not(server), "a connection takes the place of one that has gone"
        )
    server.end()
    assert server.refused["connections"] >= 1


def echoes_or_not(server: EchoServer) -> bool:
    try:
        return echoes_elsewhere(server)
    except ConnectionError:
        return False


def test_the_number_of_connections_of_one_address_is_limited(start: Start) -> None:
    server = start("connections_per_address=2", loops=2)
    with ExitStack() as stack:
        allowed = [stack.enter_context(closing(server.connect())) for _ in range(2)]
        assert all_echo(allowed)
        with closing(server.connect()) as refused:
            assert take(refused, 100) == b"not now\n"
        with socket.create_connection(server.port, source_address=("127.0.0.2", 0)) as other:
            assert echoes(other)
        reset(allowed.pop())
        eventually(
            lambda: echoes_or_not(server), "a connection takes the place of one that has gone"
        )
    server.end()
    assert server.refused["connections_per_address"] >= 1


def test_clients_are_turned_away_when_descriptors_run_out(start: Start) -> None:
    """They are served again once there are descriptors."""
    server = start(descriptors=30)
    with ExitStack() as stack:
        taken: list[socket.socket] = []

        def exhausted() -> bool:
            connection = stack.enter_context(closing(server.connect()))
            if not echoes_on(connection):
                return True
            taken.append(connection)
            return False

        eventually(exhausted, "no descriptor is left")
        assert all_echo(taken)
    eventually(lambda: echoes_or_not(server), "there are descriptors again")
    server.end()
    assert server.refused["descriptors"] >= 1


def echoes_on(connection: socket.socket) -> bool:
    try:
        ask(connection, "echo hello")
        return take(connection, 6) == b"hello\n"
    except ConnectionError:
        return False


def test_a_drain_answers_requests_and_accepts_no_new_connections(start: Start) -> None:
    server = start(loops=1)  # of two, one may accept while the other has said goodbye
    with ExitStack() as stack:
        idle, busy, late = (stack.enter_context(closing(server.connect())) for _ in range(3))
        assert all_echo([idle, busy, late])
        ask(busy, "echo hello\nsleep")
        assert take(busy, 6) == b"hello\n"
        ask(late, f"write {_BIG}\nsleep")
        assert take(late, 1) == b"x"
        server.terminate()
        assert take(idle, 100) == b"goodbye\n"
        waiting = stack.enter_context(closing(server.connect()))
        ask(waiting, "echo hello")
        backlog = stack.enter_context(closing(server.listener.dup()))
        assert take(late, _BIG + 5) == b"x" * (_BIG + 4)  # which wakes the other one
        assert take(busy, 6) == b"x" * 5
        server.end()
        successor = stack.enter_context(closing(backlog.accept()[0]))
        assert successor.recv(100) == b"echo hello\n"
    assert server.counts["opened"] == 3


def test_invalid_limits_are_refused(start: Start) -> None:
    assert "header_bytes is 1, but must be between 1024" in start("header_bytes=1").first_line
    assert start("legs=4").first_line == "there is no limit 'legs'"
