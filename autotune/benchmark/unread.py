"""How long what is read now has lain unread: the kernel knows when it came, the loop does not.

A loop that is late reads late, and every first token that it reads late makes TTFT longer.  The
loop's lateness by the clock says what might happen at any moment; this says what happened to the
first tokens.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Protocol

__all__ = ["Network", "unread_ms"]

# `tcpi_last_data_recv` of `struct tcp_info` (linux/tcp.h): eight bytes, then numbers of four.
_LAST_DATA_RECEIVED = 8 + 11 * 4
_NUMBER = struct.Struct("=I")


class Network(Protocol):
    """A connection as httpx's extension `network_stream` gives it."""

    def get_extra_info(self, info: str) -> object: ...


def unread_ms(network: Network | None) -> float | None:
    """Time since the newest bytes of a TCP connection came, ms, in steps of the kernel's tick.

    A tick is 1 to 10 ms, most often 4; a mean over many readings is exact to much less.  None where
    it is not known: no Linux, no TCP, a connection that is gone.
    """
    if network is None or sys.platform != "linux":
        return None
    asked = getattr(network.get_extra_info("socket"), "getsockopt", None)
    if asked is None:
        return None
    try:
        info = asked(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECEIVED + _NUMBER.size)
    except OSError:
        return None
    if len(info) < _LAST_DATA_RECEIVED + _NUMBER.size:
        return None
    return float(_NUMBER.unpack_from(info, _LAST_DATA_RECEIVED)[0])
