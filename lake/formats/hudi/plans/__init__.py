# SPDX-License-Identifier: Apache-2.0
"""lakefold's changes of a timeline: plans and cleans published, adopted and withdrawn."""
