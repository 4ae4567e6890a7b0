# SPDX-License-Identifier: Apache-2.0
"""The configuration: the file, the environment, and the settings of each table."""
