# SPDX-License-Identifier: Apache-2.0
"""One table opened in Java: its write client, its settings, the locks that this process takes."""
