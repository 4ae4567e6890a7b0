# SPDX-License-Identifier: Apache-2.0
"""Policies: their settings, defaults, validation and aliases."""
