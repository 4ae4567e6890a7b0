# SPDX-License-Identifier: Apache-2.0
"""What keeps writers and plans apart, as settings and files say; without a JVM."""
