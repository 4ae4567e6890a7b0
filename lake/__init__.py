# SPDX-License-Identifier: Apache-2.0
"""Vocabulary of lakefold: the nouns, the plan state machine, the ports and the table formats."""
