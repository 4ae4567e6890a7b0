# SPDX-License-Identifier: Apache-2.0
"""Deterministic simulation: the real planner, executors and cleaner on a lake and a database in memory.

``World(script).run()`` is one run, on tables of the shapes in ``simulation.shapes``. A seed makes a script: what
writers and operators do, and which port call crashes, sleeps, fails or loses its answer. Time is virtual, threads are
greenlets, and one scheduler decides who goes on, so a script always gives the same run. ``python -m simulation --seed
N`` (with ``PYTHONPATH=tests``) replays one.
"""
