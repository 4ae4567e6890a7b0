# SPDX-License-Identifier: Apache-2.0
"""Configuration: the file, the environment over it, and what that means for each table."""
