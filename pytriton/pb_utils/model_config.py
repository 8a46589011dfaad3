"""`ModelConfig`: the argument and result of a model's `auto_complete_config`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Optional

__all__ = ["ModelConfig"]

_REQUIRED = ("name", "data_type", "dims")


class ModelConfig:
    """A model configuration that `auto_complete_config` completes. Existing values can be repeated but not changed.

    Example:
        >>> config = ModelConfig({"name": "m", "max_batch_size": 0, "input": []})
        >>> config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [4]})
        >>> config.set_max_batch_size(8)
        >>> config.as_dict()["max_batch_size"], len(config.as_dict()["input"])
        (8, 1)
    """

    def __init__(self, model_config: Mapping[str, Any]) -> None:
        self._config = copy.deepcopy(dict(model_config))

    def as_dict(self) -> dict[str, Any]:
        """Return a copy of the configuration."""
        return copy.deepcopy(self._config)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set `max_batch_size`, unless the configuration already sets it.

        Raises:
            ValueError: the configuration sets a smaller value.
        """
        existing = self._config.get("max_batch_size", 0)
        if existing > max_batch_size:
            raise ValueError(
                f"the configuration of model {self._name!r} sets max_batch_size {existing}, but auto_complete_config "
                f"sets {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching, unless the configuration already does.

        Raises:
            ValueError: the configuration uses another scheduler.
        """
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._config:
                raise ValueError(
                    f"the configuration of model {self._name!r} already sets {other}, which cannot be combined with dynamic_batching"
                )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set the transaction policy, for example {"decoupled": True}.

        Raises:
            ValueError: a key is unknown, or the policy contradicts the configuration.
        """
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(f"model_transaction_policy has no {key!r}, only 'decoupled'")
        wanted = transaction_policy_dict.get("decoupled", False)
        existing = self._config.get("model_transaction_policy", {}).get("decoupled")
        if existing and not wanted:
            raise ValueError(
                f"the configuration of model {self._name!r} declares it decoupled, but auto_complete_config does not"
            )
        self._config["model_transaction_policy"] = {"decoupled": bool(wanted)}

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add an input: a dict with `name`, `data_type` and `dims`, and possibly `optional` (default: False).

        Raises:
            ValueError: a key is missing, or contradicts the configuration.
        """
        self._add("input", input, (*_REQUIRED, "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output: a dict with `name`, `data_type` and `dims`.

        Raises:
            ValueError: a key is missing, or contradicts the configuration.
        """
        self._add("output", output, _REQUIRED)

    @property
    def _name(self) -> str:
        return str(self._config.get("name", ""))

    def _add(self, side: str, tensor: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in tensor:
            if key not in known:
                raise ValueError(f"{side} {tensor!r:.200} has an unknown key {key!r}")
        for key in _REQUIRED:
            if key not in tensor:
                raise ValueError(f"{side} {tensor!r:.200} of model {self._name!r} lacks {key!r}")
        entries: list[dict[str, Any]] = self._config.setdefault(side, [])
        existing: Optional[dict[str, Any]] = next(
            (entry for entry in entries if entry.get("name") == tensor["name"]), None
        )
        if existing is None:
            entries.append({**tensor, "dims": list(tensor["dims"])})
            return
        self._agree(side, existing, tensor)

    def _agree(self, side: str, existing: dict[str, Any], tensor: Mapping[str, Any]) -> None:
        unset = {"data_type": "TYPE_INVALID", "dims": [], "optional": False}
        for key, value in tensor.items():
            wanted = list(value) if key == "dims" else value
            if existing.get(key, unset.get(key)) == unset.get(key):
                existing[key] = wanted
            elif existing[key] != wanted:
                raise ValueError(
                    f"{side} {tensor['name']!r} of model {self._name!r} has {key} {existing[key]!r} in the configuration "
                    f"and {wanted!r} in auto_complete_config"
                )
