# SPDX-License-Identifier: Apache-2.0
"""Models of writers: which files a batch leaves behind, from the writer's settings alone. Pure, like all planning."""
