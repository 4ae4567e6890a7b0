# SPDX-License-Identifier: Apache-2.0
"""Pure planning: data in, data out, without I/O and without a clock."""
