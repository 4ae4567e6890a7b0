# SPDX-License-Identifier: Apache-2.0
"""A table's files, read by path. Spark's executors get these modules, and no others of the package."""
