# SPDX-License-Identifier: Apache-2.0
"""Apache Hudi: table version 9, copy-on-write and merge-on-read."""
