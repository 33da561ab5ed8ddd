"""Build the container images of HeterPS.

    python -m images [operator] [runtime] [--base IMAGE]

Each image becomes an archive in `.cache/images`, for `docker load` or `ctr images import`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from images.archive import layer_sizes
from images.building import ROLES, ROOT, Builder, BuildError, archive_of, is_current, missing_programs, name_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m images", description="build the container images of HeterPS")
    parser.add_argument("role", nargs="*", help=f"default: {' '.join(ROLES)}")
    parser.add_argument(
        "--base", help="image to build on (default: Python's slim one, or Debian's packages without a registry)"
    )
    options = parser.parse_args(arguments)
    roles: Sequence[str] = options.role or ROLES
    if unknown := sorted(set(roles) - set(ROLES)):
        parser.error(f"no such role: {', '.join(unknown)}; there are {', '.join(ROLES)}")
    if missing := missing_programs():
        print(f"not installed: {', '.join(missing)}. On Debian: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 1
    builder = Builder(lambda words: print(words, flush=True))
    try:
        wanted = [role for role in roles if options.base or not is_current(role)]
        if wanted:
            base = options.base or builder.default_base()
            if options.base:
                builder.pull(base)
            for role in wanted:
                builder.build(role, base)
        for role in roles:
            _describe(role)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what is built stays", file=sys.stderr)
        return 130
    return 0


def _describe(role: str) -> None:
    """Print the sizes of an image."""
    *base, own = layer_sizes(archive_of(role))
    print(f"{name_of(role)}, {(sum(base) + own) / 1e6:,.0f} MB: {archive_of(role).relative_to(ROOT)}")
    print(f"  {sum(base) / 1e6:8,.0f} MB  base, {len(base)} layer(s)")
    print(f"  {own / 1e6:8,.0f} MB  HeterPS and the packages of images/{role}.lock")


if __name__ == "__main__":
    sys.exit(main())
