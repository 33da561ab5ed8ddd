"""`python -m tests.cluster`: an interactive test cluster."""

from __future__ import annotations

import argparse
import shutil
import sys

from tests.cluster import building
from tests.cluster.cluster import NODES, Cluster, Place, clusters
from tests.cluster.demo import show
from tests.cluster.errors import ClusterError
from tests.cluster.image_demo import show_from_images
from tests.cluster.preparing import prepare, prepare_tests
from tests.cluster.requirements import reasons_against

NAME = "default"
HOW_TO_USE = """\
Talk to it from this shell:
  alias kt='nsenter --net=/proc/{pid}/ns/net {kubectl} --kubeconfig {kubeconfig} --cache-dir {cache}'
  kt get nodes
Logs of its programs: {logs}
It runs until: python -m tests.cluster down{option}   (make cluster-down)"""


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description="A real Kubernetes on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="install and build what the tests need, if it is not there")
    verbs.add_parser("build-benchmark", help="the same for `make benchmark-operator`")
    verbs.add_parser("build-store", help="build the object store, for `make benchmark-data`")
    verbs.add_parser("check", help="say whether this machine can run a cluster, and what it lacks")
    demo = verbs.add_parser("demo", help="train the flights example on a cluster of its own, and show each step")
    demo.add_argument("--from-images", action="store_true", help="install the chart and examples/flights/cluster.yaml")
    verbs.add_parser("update", help="write the go.sum files anew after a version in a go.mod was changed")
    for verb, explanation in {
        "up": "start a cluster",
        "down": "end a cluster and remove all that it made",
        "status": "list the clusters that run here",
        "kubeconfig": "print the path of the cluster's kubeconfig",
    }.items():
        verbs.add_parser(verb, help=explanation).add_argument("--name", default=NAME, help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        return run(arguments)
    except ClusterError as error:
        say(f"error: {error}")
        return 1


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "build":
        prepare_tests(say)
        say("What the cluster tests need is built")
    elif arguments.verb == "build-benchmark":
        prepare((*building.CLUSTER, building.KWOK), say)
        say("What `make benchmark-operator` needs is built")
    elif arguments.verb == "build-store":
        building.build([building.VERSITYGW], say)
    elif arguments.verb == "check":
        reasons = reasons_against()
        say(
            "\n".join(["This machine cannot run a cluster yet:", *reasons])
            if reasons
            else "This machine can run a cluster"
        )
        return 1 if reasons else 0
    elif arguments.verb == "demo":
        prepare((*building.CLUSTER, building.HELM) if arguments.from_images else building.CLUSTER, say)
        folder = building.ROOT / ".cache" / "demo-cluster"
        shutil.rmtree(folder, ignore_errors=True)
        return show_from_images(folder) if arguments.from_images else show(folder)
    elif arguments.verb == "update":
        building.update(say)
    elif arguments.verb == "up":
        prepare(building.CLUSTER, say)
        Cluster(NODES, name=arguments.name, outlive_parent=True, say=say).up()
        explain(Place(arguments.name))
    elif arguments.verb == "down":
        place = Place(arguments.name)
        found = place.folder.exists()
        place.remove()
        say(f"{arguments.name} is gone" if found else f"{arguments.name} was not up")
    elif arguments.verb == "status":
        for place in clusters():
            sys.stdout.write(f"{place.name}  {'running' if place.running else 'ended, files left'}  {place.folder}\n")
    else:
        place = Place(arguments.name)
        if not place.running:
            raise ClusterError(f"{arguments.name} is not up; say: make cluster-up")
        sys.stdout.write(f"{place.kubeconfig}\n")
    return 0


def explain(place: Place) -> None:
    """Print how to reach a cluster."""
    assert place.sandbox is not None
    option = "" if place.name == NAME else f" --name {place.name}"
    say(HOW_TO_USE.format(
        pid=place.sandbox.pid, kubectl=building.path_of(building.KUBECTL), kubeconfig=place.kubeconfig,
        cache=place.kubectl_cache, logs=place.folder / "logs", option=option,
    ))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
