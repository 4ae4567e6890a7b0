# SPDX-License-Identifier: Apache-2.0
"""The command ``lakefold demo``: a real writer with its own ledger, the real daemon, and a report about both."""
