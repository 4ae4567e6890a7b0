# SPDX-License-Identifier: Apache-2.0
"""The service around planner and executors: configuration, store, daemon, command line, metrics."""
