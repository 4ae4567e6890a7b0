# SPDX-License-Identifier: Apache-2.0
"""Models of writers: the files that a batch creates, by the writer's settings alone. Pure, like all planning."""
