"""The keys for controlling the daemon over TCP (CurveZMQ): the server's key pair and the clients' public keys.

::

    <keys_dir>/              0700
      server.key_secret      the server's key pair, 0600; server.key holds its public half
      clients/NAME.key       public half of a client; only the client's own file holds its secret half

The files are pyzmq certificates (zmq.auth). A client's own file also has the server's public key in its metadata.
The directory is read again for each message, so a removed key is refused immediately.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import zmq.auth

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.control import SERVER_KEY
from pytriton._protocol.files.private_files import open_private

_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,63}")


class KeyStoreError(Exception):
    """A key cannot be created, read or used; the text says which one, and what to do."""


def default_keys_dir(env: Mapping[str, str]) -> Path:
    """Return the default directory of keys: /etc/pytriton-daemon/keys for root, else below $XDG_CONFIG_HOME."""
    if os.geteuid() == 0:
        return Path("/etc/pytriton-daemon/keys")
    home = env.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home, "pytriton-daemon", "keys")


def key_store(config: DaemonConfig) -> KeyStore:
    """Return the keys of a daemon with these settings."""
    folder = config.keys_dir
    return KeyStore(default_keys_dir(os.environ) if folder is None else Path(folder))


class KeyStore:
    """A directory with the server's key and the keys of its clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = folder / "server.key_secret"
        self._clients = folder / "clients"

    def make_server_key(self) -> str:
        """Create the server's key pair, and return its public key.

        Raises:
            KeyStoreError: the server has a key already, which its clients know; or the new one cannot be written.
        """
        if self._server.exists():
            raise KeyStoreError(
                f"the server key {self._server} already exists. To replace it, delete that file first; every "
                "client then needs a new file (`keys add`)."
            )
        public = self.folder / "server.key"
        return self._make("server", {}, secret_to=self._server, public_to=public)

    def server_keys(self) -> tuple[bytes, bytes]:
        """Return the server's public key and its secret key.

        Raises:
            KeyStoreError: there is no key, other users can read or replace it, or the file is invalid.
        """
        try:
            self._refuse_others_folders()
            mode = stat.S_IMODE(self._server.stat().st_mode)
            if mode & 0o077:
                raise KeyStoreError(
                    f"other users can read the server's key {self._server} (mode {mode:04o}): create a new one, or run "
                    f"`chmod 600 {self._server}` if you are sure that nobody has read it."
                )
            public, secret = zmq.auth.load_certificate(self._server)
        except FileNotFoundError:
            raise KeyStoreError(
                f"there is no server key in {self.folder}. Create it with `pytriton-daemon keys init`."
            ) from None
        except (OSError, ValueError) as error:
            raise KeyStoreError(
                f"the server's key {self._server} cannot be read: {error}"
            ) from error
        if secret is None:
            raise KeyStoreError(
                f"{self._server} contains no secret key: delete it and create a new one."
            )
        return public, secret

    def _refuse_others_folders(self) -> None:
        """Refuse directories that other users can write to: anyone who adds a key there can control the daemon."""
        for folder in (self.folder, self._clients):
            info = folder.stat()
            if info.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(info.st_mode) & 0o022:
                raise KeyStoreError(
                    f"other users can write to {folder}, and anyone who adds a key there can control the daemon. Check the "
                    f"keys in it, then make it private (chmod 700 {folder})."
                )

    def add(self, name: str, output: Path) -> None:
        """Create and authorize a client's key pair, and write the key file that the client needs.

        Raises:
            KeyStoreError: the name is taken or invalid, `output` exists, or a file cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise KeyStoreError(
                f"{name!r} is not a valid name: use at most 64 letters, digits, dots, underscores and dashes."
            )
        public = self._clients / f"{name}.key"
        for path in (public, output):
            if path.exists():
                raise KeyStoreError(
                    f"{path} already exists: choose another name, or remove that key first."
                )
        server, _ = self.server_keys()
        self._make(name, {SERVER_KEY: server.decode()}, secret_to=output, public_to=public)

    def remove(self, name: str) -> None:
        """Revoke a client's key. From now on, the daemon refuses this client's messages.

        Raises:
            KeyStoreError: there is no such client.
        """
        if not _NAME.fullmatch(name) or not (self._clients / f"{name}.key").exists():
            raise KeyStoreError(
                f"there is no client {name!r}; known clients: {', '.join(self.clients()) or 'none'}."
            )
        (self._clients / f"{name}.key").unlink()

    def clients(self) -> dict[str, str]:
        """Return the public keys of the clients that may connect, by name."""
        paths = sorted(self._clients.glob("*.key"))
        return {path.stem: key for path in paths if (key := _public_key(path)) is not None}

    def name_of(self, key: str | bytes) -> str | None:
        """Return the name of the client with this public key (Z85); None if no client that may connect has it."""
        text = key if isinstance(key, str) else key.decode("ascii", "replace")
        return next((name for name, public in self.clients().items() if public == text), None)

    def _make(
        self, name: str, metadata: dict[str, str], *, secret_to: Path, public_to: Path
    ) -> str:
        try:
            for folder in (self.folder, self._clients):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new", dir=self.folder) as scratch:  # 0700
                public, secret = zmq.auth.create_certificates(scratch, name, metadata)
                content = Path(secret).read_bytes()
                with open(secret_to, "xb", opener=open_private) as file:
                    file.write(content)
                os.replace(public, public_to)
                return zmq.auth.load_certificate(public_to)[0].decode()
        except OSError as error:
            raise KeyStoreError(f"the key of {name} cannot be written: {error}") from error


def _public_key(path: Path) -> str | None:
    try:
        return zmq.auth.load_certificate(path)[0].decode()
    except (OSError, ValueError):  # just removed, or not a key file
        return None
