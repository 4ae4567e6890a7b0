# SPDX-License-Identifier: Apache-2.0
"""Advice on the settings of a table's writers: the remedies, their effect in a replay, and the best one."""
