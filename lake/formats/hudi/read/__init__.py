# SPDX-License-Identifier: Apache-2.0
"""A table as its readers see it: slices, history, checks, and descriptions for people."""
