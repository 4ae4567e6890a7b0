# SPDX-License-Identifier: Apache-2.0
"""What lakefold writes to a timeline: plans and cleans made known, adopted, taken back."""
