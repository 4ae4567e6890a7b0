# SPDX-License-Identifier: Apache-2.0
"""Chaos from outside: real processes, faults at random moments, and a ledger that says which rows there must be."""
