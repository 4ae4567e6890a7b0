# SPDX-License-Identifier: Apache-2.0
"""The locks under which this process changes a table: lakefold's own and Hudi's."""
