# SPDX-License-Identifier: Apache-2.0
"""Pure planning: data in, data out, no I/O and no clock of its own."""
