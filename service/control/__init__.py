# SPDX-License-Identifier: Apache-2.0
"""Planning, the database, configuration and documents: what the server and the command line stand on."""
