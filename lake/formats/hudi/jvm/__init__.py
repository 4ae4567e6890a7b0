# SPDX-License-Identifier: Apache-2.0
"""Hudi's Java classes: the bundle of a session, a cache of classes, and the translation of Java errors."""
