# SPDX-License-Identifier: Apache-2.0
"""Tables whose partitions have a location in a catalog, as Hive's: no timeline, no lock, no compare-and-set."""
