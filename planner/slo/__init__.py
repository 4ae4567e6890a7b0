# SPDX-License-Identifier: Apache-2.0
"""Objectives of a table's layout: model, evaluation, and error budget."""
