# SPDX-License-Identifier: Apache-2.0
"""The command line: ``lakefold``, its commands, their client, and the demo."""
