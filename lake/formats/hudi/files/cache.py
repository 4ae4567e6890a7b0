# SPDX-License-Identifier: Apache-2.0
"""The cache of values read from immutable files of tables, limited by their weight."""

import threading
from collections import OrderedDict
from typing import Any, Generic, TypeVar

_Value = TypeVar("_Value")


class WeightedCache(Generic[_Value]):
    """The least-recently-used cache of weighted values. Thread-safe.

    Values are dropped while their total weight exceeds ``capacity``; one value always stays.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity, self._total_weight = capacity, 0
        self._values: OrderedDict[Any, tuple[_Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> _Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Any, value: _Value, weight: int) -> None:
        with self._lock:
            self._total_weight += weight - self._values.pop(key, (value, 0))[1]
            self._values[key] = value, weight
            while self._total_weight > self._capacity and len(self._values) > 1:
                self._total_weight -= self._values.popitem(last=False)[1][1]
