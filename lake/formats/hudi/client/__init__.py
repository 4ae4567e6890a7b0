# SPDX-License-Identifier: Apache-2.0
"""A table opened in Java: its write client, its write settings and the locks that this process takes."""
