# SPDX-License-Identifier: Apache-2.0
"""The output of commands: text for people, JSON for scripts."""
