# SPDX-License-Identifier: Apache-2.0
"""The execution and the commit of a published plan."""
