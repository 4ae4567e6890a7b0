# SPDX-License-Identifier: Apache-2.0
"""Changes tables through Iceberg's Java API."""
