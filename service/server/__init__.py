# SPDX-License-Identifier: Apache-2.0
"""The server: the daemon's loops, the HTTP API, the page, metrics and notifications."""
