# SPDX-License-Identifier: Apache-2.0
"""The replay of a table's own history under another policy, planned by the planner itself."""
