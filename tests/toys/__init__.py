# SPDX-License-Identifier: Apache-2.0
"""Three table formats on plain Parquet files, small enough to read at once, and what tests do with them.

``timeline`` has a timeline and a lock, ``locations`` neither these nor a compare-and-set, ``versions`` has numbered
snapshots of which each is created by one writer only.
"""
