# SPDX-License-Identifier: Apache-2.0
"""Hudi's Java classes: the bundle of a session, each class found once, what they throw."""
