"""Build the container images of HeterPS.

    python -m images [operator] [runtime] [flights] [--base IMAGE]

Each image becomes an archive in `.cache/images`, for `docker load` or `ctr images import`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from images.archive import layer_sizes
from images.building import IMAGES, ROOT, Builder, BuildError, archive_of, is_current, missing_programs, name_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m images", description="build the container images of HeterPS")
    parser.add_argument("image", nargs="*", help=f"default: {' '.join(IMAGES)}")
    parser.add_argument(
        "--base", help="image to build on (default: Python's slim one, or Debian's packages without a registry)"
    )
    options = parser.parse_args(arguments)
    images: Sequence[str] = options.image or list(IMAGES)
    if unknown := sorted(set(images) - set(IMAGES)):
        parser.error(f"no such image: {', '.join(unknown)}; there are {', '.join(IMAGES)}")
    if missing := missing_programs():
        print(f"not installed: {', '.join(missing)}. On Debian: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 1
    builder = Builder(lambda words: print(words, flush=True))
    try:
        wanted = [image for image in images if options.base or not is_current(image)]
        if wanted:
            base = options.base or builder.default_base()
            if options.base:
                builder.pull(base)
            for image in wanted:
                builder.build(image, base)
        for image in images:
            _describe(image)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what is built stays", file=sys.stderr)
        return 130
    return 0


def _describe(image: str) -> None:
    """Print the sizes of an image."""
    sizes = layer_sizes(archive_of(image))
    print(f"{name_of(image)}, {sum(sizes) / 1e6:,.0f} MB: {archive_of(image).relative_to(ROOT)}")
    held: list[str] = []  # by a layer each, the last one first
    step: str | None = image
    while step is not None:
        held.append(IMAGES[step].holds)
        step = IMAGES[step].parent
    base = sizes[: -len(held)]
    print(f"  {sum(base) / 1e6:8,.0f} MB  base, {len(base)} layer(s)")
    for size, what in zip(sizes[-len(held) :], reversed(held), strict=True):
        print(f"  {size / 1e6:8,.0f} MB  {what}")


if __name__ == "__main__":
    sys.exit(main())
