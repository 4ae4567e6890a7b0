# SPDX-License-Identifier: Apache-2.0
"""The configuration: the file, the environment over it, and the settings of each table."""
