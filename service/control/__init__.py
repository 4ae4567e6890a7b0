# SPDX-License-Identifier: Apache-2.0
"""Planning, the database, configuration and documents: the layer below the server and the command line."""
