"""What TCP by itself takes for what two ranks exchange in a step: each end sends the bytes and receives as many, at the same time. Prints the median in milliseconds.
Usage: tcp_exchange.py listen|connect ADDRESS PORT BYTES STEPS"""
import socket
import statistics
import sys
import threading
import time


def connection(role, address, port):
    if role == "listen":
        with socket.create_server((address, port)) as listening:
            return listening.accept()[0]
    deadline = time.monotonic() + 60
    while True:  # the other end may still be starting
        try:
            return socket.create_connection((address, port), timeout=60)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def receive(peer, buffer):
    got = 0
    while got < len(buffer):
        count = peer.recv_into(memoryview(buffer)[got:])
        if count == 0:
            raise ConnectionError("the other end has closed")
        got += count


def exchange(peer, outgoing, incoming):
    """Seconds until all has been received and the other end has confirmed the same."""
    begin = time.monotonic()
    sender = threading.Thread(target=peer.sendall, args=(outgoing,))
    sender.start()
    receive(peer, incoming)
    sender.join()
    peer.sendall(b"!")
    receive(peer, bytearray(1))
    return time.monotonic() - begin


def main():
    role, address, port, size, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    with connection(role, address, port) as peer:
        peer.settimeout(60)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outgoing, incoming = bytes(size), bytearray(size)
        exchange(peer, outgoing, incoming)  # from then on the connection knows its window
        print(1e3 * statistics.median(exchange(peer, outgoing, incoming) for _ in range(steps)))


main()
