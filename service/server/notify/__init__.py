# SPDX-License-Identifier: Apache-2.0
"""Notifications that lakefold sends by itself: messages to a webhook, signs of life to a dead man's switch."""
