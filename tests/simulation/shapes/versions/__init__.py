# SPDX-License-Identifier: Apache-2.0
"""Tables with numbered versions, each created by one writer only, as those of Delta and Iceberg."""
