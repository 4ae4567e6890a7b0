# SPDX-License-Identifier: Apache-2.0
"""Reads tables without a JVM: manifests, commits, footers, and what lakefold does not rewrite."""
