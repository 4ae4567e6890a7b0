# SPDX-License-Identifier: Apache-2.0
"""The files that a plan rewrites: what their footers say, which engine suits them, which can't be read."""
