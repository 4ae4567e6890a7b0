# SPDX-License-Identifier: Apache-2.0
"""Policies: settings, defaults, validation and aliases."""
