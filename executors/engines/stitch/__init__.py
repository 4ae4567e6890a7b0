# SPDX-License-Identifier: Apache-2.0
"""The engine ``stitch``: parts of data files are copied as bytes under one new footer; no value is decoded."""
