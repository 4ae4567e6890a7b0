# SPDX-License-Identifier: Apache-2.0
"""The commands that there are, as the application itself declares them."""

from service.cli import main


def every_command() -> list[tuple[str, ...]]:
    """The path of each command that is not a group, without former names, which help hides."""
    found: list[tuple[str, ...]] = []

    def walk(command: object, path: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        if children is None:
            found.append(path)
            return
        for name, child in children.items():
            if not child.hidden:
                walk(child, (*path, name))

    walk(main.root_command(), ())
    return found
