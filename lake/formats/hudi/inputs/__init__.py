# SPDX-License-Identifier: Apache-2.0
"""The input files of plans: their footers, the engine that suits them, and unreadable ones."""
