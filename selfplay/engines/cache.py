"""Keys and values of sequences being written: room is made ahead, rows can be repeated and thrown out."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 64
"""Tokens of room that is made at a time."""


class _Layer(DynamicLayer):
    """Appends in place instead of copying everything at each token. Windows of attention are the mask's business."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._rooms = [key_states.new_empty(0), value_states.new_empty(0)]
            self._length = 0
        start, self._length = self._length, self._length + key_states.shape[-2]
        for i, states in enumerate((key_states, value_states)):
            if self._rooms[i].ndim < 4 or self._rooms[i].shape[-2] < self._length:
                self._rooms[i] = _larger(self._rooms[i], states, start, self._length + ROOM)
            self._rooms[i][:, :, start : self._length] = states
        self.keys, self.values = (room[:, :, : self._length] for room in self._rooms)
        return self.keys, self.values

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; some may come several times."""
        kept = [_larger(room[rows, :, : self._length], room, self._length, self._length + ROOM) for room in self._rooms]
        self._rooms = kept
        self.keys, self.values = (room[:, :, : self._length] for room in kept)


def _larger(old: Tensor, like: Tensor, length: int, room: int) -> Tensor:
    rows = old.shape[0] if length else like.shape[0]
    made = like.new_empty(rows, like.shape[1], room, like.shape[3])
    if length:
        made[:, :, :length] = old[:, :, :length]
    return made


class GrowingCache(Cache):
    """A cache of such layers."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=_Layer)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; some may come several times."""
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            layer.select(rows)
