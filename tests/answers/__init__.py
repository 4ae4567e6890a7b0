# SPDX-License-Identifier: Apache-2.0
"""What readers answer of random rows in the files of every engine and format, before a rewrite and after it."""
