# SPDX-License-Identifier: Apache-2.0
"""What lakefold tells other systems by itself: messages to a webhook, signs of life to a dead man's switch."""
