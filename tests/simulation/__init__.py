# SPDX-License-Identifier: Apache-2.0
"""Deterministic simulation: the real planner, executors and cleaner on a lake and a database in memory.

``World(script).run()`` is one run, on tables of the shapes in ``simulation.shapes``. A seed determines a script: the
actions of writers and operators, and the port calls at which a process crashes, is suspended, fails or loses the
answer. Time is virtual, threads are greenlets, and one scheduler chooses the next thread, so a script is repeatable.
``python -m simulation --seed N`` (with ``PYTHONPATH=tests``) replays one.
"""
