# SPDX-License-Identifier: Apache-2.0
"""Writers and readers of Hive tables that never pause while lakefold moves partitions, and who judges what is read."""
