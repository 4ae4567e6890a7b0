# SPDX-License-Identifier: Apache-2.0
"""Settings and files of the locks between writers and plans. Needs no JVM."""
