# SPDX-License-Identifier: Apache-2.0
"""The web page: server-rendered HTML, inline SVG, one style sheet, and a little JavaScript for live updates."""
