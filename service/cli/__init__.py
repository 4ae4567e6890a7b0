# SPDX-License-Identifier: Apache-2.0
"""The ``lakefold`` command line: the commands, their client and the demo."""
