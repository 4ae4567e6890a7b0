# SPDX-License-Identifier: Apache-2.0
"""Objectives of a table's layout: their model, their evaluation, their error budget."""
