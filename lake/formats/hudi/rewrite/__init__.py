# SPDX-License-Identifier: Apache-2.0
"""A published plan executed and committed."""
