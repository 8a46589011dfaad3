"""The folder of client keys: the owner of a key in it may control the daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton._host.client_keys import KeyStore, KeyStoreError


@pytest.mark.parametrize("name", [".", "clients"])
def test_a_folder_writable_by_others_is_refused(tmp_path: Path, name: str) -> None:
    store = KeyStore(tmp_path / "keys")
    store.make_server_key()
    assert len(store.server_keys()) == 2
    (tmp_path / "keys" / name).chmod(0o777)
    with pytest.raises(KeyStoreError, match=r"other users can write .*chmod 700"):
        store.server_keys()
