# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of a process: the application with ``/v1`` and the page, its guard and its limits."""
