# SPDX-License-Identifier: Apache-2.0
"""The commands of the ``lakefold`` command line, one module for each noun."""
