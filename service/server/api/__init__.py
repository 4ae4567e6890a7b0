# SPDX-License-Identifier: Apache-2.0
"""The HTTP API of a lakefold process: metrics and health in every role, ``/v1`` in the roles that serve it."""
