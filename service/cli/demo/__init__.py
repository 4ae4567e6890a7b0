# SPDX-License-Identifier: Apache-2.0
"""``lakefold demo``: a real Hudi writer with its own ledger, the real daemon, and what a person sees of both."""
