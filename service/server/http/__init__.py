# SPDX-License-Identifier: Apache-2.0
"""The one HTTP server of a process: the application made of ``/v1`` and the page, and what guards it."""
