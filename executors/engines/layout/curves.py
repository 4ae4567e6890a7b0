# SPDX-License-Identifier: Apache-2.0
"""Positions of points on the Z-order curve and on the Hilbert curve, for arrays of points.

Sources: G. M. Morton, "A computer oriented geodetic data base and a new technique in file sequencing", IBM 1966.
J. Skilling, "Programming the Hilbert curve", AIP Conference Proceedings 707, 381 (2004).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Coordinates = npt.NDArray[np.uint64]

POSITION_BITS = 64
"""The bits of a position, which the coordinates of a point share."""


def coordinate_bits(dimensions: int) -> int:
    """Return the bits of each coordinate of a point in so many ``dimensions``; 20 bits distinguish a million ranks."""
    return min(20, POSITION_BITS // dimensions)


def z_order(coordinates: Sequence[Coordinates], bits: int) -> Coordinates:
    """Return the position of each point on the Z-order curve: the bits of its coordinates, interleaved.

    ``coordinates`` has one array for each dimension, with values of ``bits`` bits. The first dimension has the highest
    bit.
    """
    position = np.zeros_like(coordinates[0])
    for bit in range(bits - 1, -1, -1):
        for values in coordinates:
            position = (position << np.uint64(1)) | ((values >> np.uint64(bit)) & np.uint64(1))
    return position


def hilbert(coordinates: Sequence[Coordinates], bits: int) -> Coordinates:
    """Return the position of each point on the Hilbert curve; see ``z_order`` for the arguments."""
    axes = [values.copy() for values in coordinates]
    top = np.uint64(1) << np.uint64(bits - 1)
    bit = top
    while bit > 1:
        lower = bit - np.uint64(1)
        for values in axes:
            # If the bit is set, the lower bits of the first coordinate are inverted. Otherwise they are exchanged with
            # the lower bits of this coordinate.
            is_set = (values & bit) != 0
            exchanged = np.where(is_set, np.uint64(0), (axes[0] ^ values) & lower)
            axes[0] ^= np.where(is_set, lower, exchanged)
            values ^= exchanged
        bit >>= np.uint64(1)
    for index in range(1, len(axes)):
        axes[index] ^= axes[index - 1]
    inverted = np.zeros_like(axes[0])
    bit = top
    while bit > 1:
        inverted ^= np.where((axes[-1] & bit) != 0, bit - np.uint64(1), np.uint64(0))
        bit >>= np.uint64(1)
    return z_order([values ^ inverted for values in axes], bits)
