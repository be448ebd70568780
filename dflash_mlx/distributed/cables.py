"""The connections of MLX's ring: whether one was cut, which a ring of three or more waits out.

Looks at them without reading. Knows sockets and the host file only.
"""

import json
import os
import socket
from contextlib import suppress

from .places import RING


def ring_sockets() -> list[socket.socket]:
    """Twins of this process's connections of the ring; none with another backend."""
    found: list[socket.socket] = []
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        with open(os.environ[RING], encoding="utf-8") as file:
            ports = {int(one.rpartition(":")[2]) for ips in json.load(file) for one in ips}
        for fd in map(int, os.listdir("/dev/fd")):
            with suppress(OSError):
                twin = socket.socket(fileno=os.dup(fd))
                if {twin.getsockname()[1], twin.getpeername()[1]} & ports:
                    found.append(twin)
                else:
                    twin.close()
    return found


def is_cut(connection: socket.socket) -> bool:
    """Whether the other end has closed it."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
