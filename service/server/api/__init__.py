# SPDX-License-Identifier: Apache-2.0
"""The HTTP side of a lakefold process: metrics and health in every role, ``/v1`` where the role serves it."""
