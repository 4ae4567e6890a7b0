# SPDX-License-Identifier: Apache-2.0
"""The notifications of lakefold: messages to a webhook and to channels, and heartbeats to a dead man's switch."""
