"""An ssh server of paramiko that lets everybody in."""

from __future__ import annotations

import paramiko
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

__all__ = ["OpenServer"]


class OpenServer(paramiko.ServerInterface):
    """Any key, any channel."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED
