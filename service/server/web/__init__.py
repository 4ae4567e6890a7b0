# SPDX-License-Identifier: Apache-2.0
"""The live page: server-rendered HTML, inline SVG, one style sheet, and a little JavaScript for what moves."""
