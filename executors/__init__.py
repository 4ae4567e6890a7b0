# SPDX-License-Identifier: Apache-2.0
"""Turns plans into new file versions: claim, rewrite, verify, commit, clean."""
