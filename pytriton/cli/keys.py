"""`pytriton-daemon keys`: the folder of keys that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytriton.cli.errors import CliError
from pytriton.cli.settings import Given
from pytriton.dispatcher.control.client_keys import KeyStore, KeyStoreError, key_store
from pytriton.ipc.exit_codes import ExitCode


@contextmanager
def keys_of(config: str | None, keys_dir: str | None) -> Iterator[KeyStore]:
    """Yield the keys of a daemon with the same settings; what is wrong with them ends the command."""
    flags = {} if keys_dir is None else {"keys_dir": keys_dir}
    try:
        yield key_store(Given(flags, config).load().config)
    except KeyStoreError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None
