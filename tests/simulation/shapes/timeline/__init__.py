# SPDX-License-Identifier: Apache-2.0
"""Tables with a timeline, a lock and an index of files, as Hudi's."""
