# SPDX-License-Identifier: Apache-2.0
"""Wires the rooms together: configuration, store, daemon, command line, metrics."""
