"""Common mistakes and their messages: each names the line, the object, the field and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.heterps_operator.api.samples import CPU, FILE, GPU, JOB, refused

# The replaced text of the sample file, its replacement, and the expected problems. Lines 1-4 of the file are the pool
# cpu, 6-9 the pool v100, 11-18 the job.
MALFORMED: list[tuple[str, str, list[str]]] = [
    # --- names of fields
    ("label: late", "lable: late", [
        "job.yaml:16: HeterPSJob flights: spec.data.label: is required; add it, for example label: \"late\"",
        "job.yaml:16: HeterPSJob flights: spec.data.lable: is not a field (found \"late\"); did you mean label?",
    ]),
    ("{globalBatchSize: 4096}", "{global_batch_size: 4096}", [
        "job.yaml:17: HeterPSJob flights: spec.training.globalBatchSize: is required; add it, "
        "for example globalBatchSize: 4096",
        "job.yaml:17: HeterPSJob flights: spec.training.global_batch_size: is not a field (found 4096); "
        "did you mean globalBatchSize?",
    ]),
    ("  pools:", "  epochs: 3\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.epochs: is not a field (found 3); did you mean spec.training.epochs?"]),
    ("  pools:", "  gpus: 3\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.gpus: is not a field (found 3); remove it, or use one of image, code, "
        "credentials, model, data, training, objective, scheduling, pools, balancing, elasticity, parameterServer, "
        "encryption, podTemplates, checkpoint, runPolicy, mode, paused, managedBy"]),
    ("pricePerUnitHour: \"2.42\"", "dollars: \"2.42\"", [
        "job.yaml:9: DevicePool v100: spec.pricePerUnitHour: is required; "
        "add it, for example pricePerUnitHour: \"2.42\"",
        "job.yaml:9: DevicePool v100: spec.dollars: is not a field (found \"2.42\"); remove it, or use one of "
        "deviceType, resourceName, deviceClassName, torchDevice, unitsPerPod, memoryPerUnit, maxUnits, namespaces, "
        "autoscaled, pricePerUnitHour, priceFrom, spot, nodeSelector, tolerations"]),
    ("metadata: {name: flights}", "metadata: {name: flights, lables: {}}", [
        "job.yaml:13: HeterPSJob flights: metadata.lables: is not a field (found {}); did you mean labels?"]),
    ("  pools:", "  podTemplates: {all: {containers: []}}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.podTemplates.all.containers: is not a field (found []); "
        "remove it, or use one of metadata, spec"]),
    ("  model: {", "  model: {arguments: {a: 1}, argument: 2, ", [
        "job.yaml:15: HeterPSJob flights: spec.model.argument: is not a field (found 2); did you mean arguments?"]),
    ("pricePerUnitHour: \"2.42\"", "pricePerUnitHour: \"2.42\", namespaces: [{name: a}, {name: a}]", [
        "job.yaml:9: DevicePool v100: spec.namespaces[1].name: must not be in the list twice, \"a\" is item 0 already; "
        "remove or rename one of the two"]),
    # --- missing fields
    ("entrypoint: \"flights.model:build\"", "", [
        "job.yaml:15: HeterPSJob flights: spec.model.entrypoint: is required; add it, "
        "for example entrypoint: \"flights.model:build\""]),
    ("train: data/train, ", "", [
        "job.yaml:16: HeterPSJob flights: spec.data.train: is required; add it, "
        "for example train: \"s3://bucket/flights/train/\""]),
    ("  training: {globalBatchSize: 4096}\n", "", [
        "job.yaml:14: HeterPSJob flights: spec.training: is required; add it, "
        "for example training: {globalBatchSize: 4096}"]),
    ("  pools: [{name: cpu}, {name: v100}]\n", "", [
        "job.yaml:14: HeterPSJob flights: spec.pools: is required; add it, for example pools: [{name: \"cpu\"}]"]),
    ("pools: [{name: cpu}, {name: v100}]", "pools: []", [
        "job.yaml:18: HeterPSJob flights: spec.pools: must have at least 1 item, is []; add one"]),
    ("label: late", "label:", [
        "job.yaml:16: HeterPSJob flights: spec.data.label: is required; add it, for example label: \"late\""]),
    ("metadata: {name: flights}", "metadata: {}", [
        "job.yaml:13: HeterPSJob: metadata.name: is required; add it, for example name: \"flights\""]),
    ("deviceType: CPU, ", "", [
        "job.yaml:4: DevicePool cpu: spec.deviceType: is required; add it, for example deviceType: \"CPU\""]),
    # --- values of the wrong type
    ("globalBatchSize: 4096", "globalBatchSize: \"4096\"", [
        "job.yaml:17: HeterPSJob flights: spec.training.globalBatchSize: must be a whole number, is \"4096\"; "
        "write it without quotes: 4096"]),
    ("globalBatchSize: 4096", "globalBatchSize: 40.5", [
        "job.yaml:17: HeterPSJob flights: spec.training.globalBatchSize: must be a whole number, is 40.5; "
        "give a value such as 4096"]),
    ("globalBatchSize: 4096", "globalBatchSize: true", [
        "job.yaml:17: HeterPSJob flights: spec.training.globalBatchSize: must be a whole number, is true; "
        "give a value such as 4096"]),
    ("pricePerUnitHour: \"0.04\"", "pricePerUnitHour: 0.04", [
        "job.yaml:4: DevicePool cpu: spec.pricePerUnitHour: must be a string, is 0.04; write it in quotes: \"0.04\""]),
    ("pricePerUnitHour: \"0.04\"", "pricePerUnitHour: 1", [
        "job.yaml:4: DevicePool cpu: spec.pricePerUnitHour: must be a string, is 1; write it in quotes: \"1\""]),
    ("label: late", "label: y", [
        "job.yaml:16: HeterPSJob flights: spec.data.label: must be a string, is true; "
        "YAML reads y as true, write it in quotes: \"y\""]),
    ("dense: [distance]", "dense: distance", [
        "job.yaml:16: HeterPSJob flights: spec.data.dense: must be a list, is \"distance\"; "
        "see its description in docs/api.md"]),
    ("dense: [distance]", "dense: [1]", [
        "job.yaml:16: HeterPSJob flights: spec.data.dense[0]: must be a string, is 1; write it in quotes: \"1\""]),
    ("{entrypoint: \"flights.model:build\"}", "flights.model:build", [
        "job.yaml:15: HeterPSJob flights: spec.model: must be a mapping of fields, is \"flights.model:build\"; "
        "see its description in docs/api.md"]),
    ("  pools:", "  runPolicy: {suspend: \"true\"}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.runPolicy.suspend: must be true or false, is \"true\"; "
        "write it without quotes: true"]),
    ("  pools:", "  objective: {minSamplesPerSecond: 0.5}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.objective.minSamplesPerSecond: must be a whole number or a string, "
        "is 0.5; write it in quotes: \"0.5\""]),
    # --- values out of range
    ("globalBatchSize: 4096", "globalBatchSize: 0", [
        "job.yaml:17: HeterPSJob flights: spec.training.globalBatchSize: must be at least 1, is 0; "
        "give a value such as 4096"]),
    ("globalBatchSize: 4096", "globalBatchSize: 1e9", [
        "job.yaml:17: HeterPSJob flights: spec.training.globalBatchSize: must be at most 16777216, is 1000000000; "
        "give a number from 1 to 16777216"]),
    ("  pools:", "  balancing: {minGainPercent: 101}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.balancing.minGainPercent: must be at most 100, is 101; "
        "give a number from 0 to 100"]),
    ("  pools:", "  elasticity: {maxScaleDownPercent: 0}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.elasticity.maxScaleDownPercent: must be at least 1, is 0; "
        "give a number from 1 to 100"]),
    ("  pools:", "  objective: {minSamplesPerSecond: -1}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.objective.minSamplesPerSecond: must be at least 0, is -1; "
        "give a value such as 20000"]),
    ("pricePerUnitHour: \"2.42\"", "pricePerUnitHour: \"-2.42\"", [
        "job.yaml:9: DevicePool v100: spec.pricePerUnitHour: must be greater than 0, is \"-2.42\"; "
        "give a small price such as \"0.0001\" to a pool that costs nothing"]),
    ("pricePerUnitHour: \"2.42\"", "pricePerUnitHour: \"$2\"", [
        "job.yaml:9: DevicePool v100: spec.pricePerUnitHour: must be like \"2.42\", is \"$2\"; correct it (Price of "
        "one unit for one hour, a decimal number in quotes, in the currency of your choice (the same for all pools))"]),
    ("pricePerUnitHour: \"2.42\"", "pricePerUnitHour: \"2.42\\n\"", [
        "job.yaml:9: DevicePool v100: spec.pricePerUnitHour: must be like \"2.42\", is \"2.42\\n\"; correct it (Price "
        "of one unit for one hour, a decimal number in quotes, "
        "in the currency of your choice (the same for all pools))"]),
    ("{globalBatchSize: 4096}", "{globalBatchSize: 4096, optimizer: {dense: {name: adam, beta1: \"1.5\"}}}", [
        "job.yaml:17: HeterPSJob flights: spec.training.optimizer.dense.beta1: must be at least 0 and less than 1, "
        "is \"1.5\"; give a decimal number such as \"0.9\""]),
    ("unitsPerPod: 2", "unitsPerPod: 0", [
        "job.yaml:4: DevicePool cpu: spec.unitsPerPod: must be at least 1, is 0; give a value such as 1"]),
    ("  pools:", "  parameterServer: {memoryLimit: 8GB}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.parameterServer.memoryLimit: must be like \"8Gi\", is \"8GB\"; "
        "correct it (Memory of one server, in bytes, as a quantity. No limit if left out)"]),
    ("  pools:", "  parameterServer: {replicas: 0}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.parameterServer.replicas: must be at least 1, is 0; "
        "give a number from 1 to 1024"]),
    ("train: data/train", "train: \"\"", [
        "job.yaml:16: HeterPSJob flights: spec.data.train: must not be empty, is \"\"; "
        "give a value such as \"s3://bucket/flights/train/\""]),
    ("name: flights", "name: " + "f" * 41, [
        f"job.yaml:13: HeterPSJob {'f' * 41}: metadata.name: a job's name must have at most 40 characters "
        f"(found \"{'f' * 41}\"); shorten it, names of pods are made from it"]),
    # --- invalid names
    ("label: late", "label: late, format: parket", [
        "job.yaml:16: HeterPSJob flights: spec.data.format: must be one of parquet, arrow, csv, criteo-tsv, "
        "is \"parket\"; did you mean parquet?"]),
    ("deviceType: GPU", "deviceType: TPU", [
        "job.yaml:9: DevicePool v100: spec.deviceType: must be one of CPU, GPU, XPU, is \"TPU\"; choose one of them"]),
    ("  pools:", "  scheduling: {method: RL_LSTM}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.scheduling.method: must be one of optimal, rl-lstm, rl-rnn, pretrained, "
        "bayesian, genetic, greedy, brute-force, cpu, gpu, heuristic, heuristic-gpu-first, is \"RL_LSTM\"; "
        "did you mean rl-lstm?"]),
    ("flights.model:build", "flights.model", [
        "job.yaml:15: HeterPSJob flights: spec.model.entrypoint: must be like \"flights.model:build\", "
        "is \"flights.model\"; correct it (Where to find the function or class that returns the torch.nn.Module, "
        "as module:callable)"]),
    ("[carrier, origin]", "[carrier, ori-gin]", [
        "job.yaml:16: HeterPSJob flights: spec.data.sparse[1]: must be like \"carrier\", is \"ori-gin\"; "
        "correct it (Name of a column, which is also the name of a parameter of the model's forward)"]),
    ("name: flights", "name: Flights", [
        "job.yaml:13: HeterPSJob Flights: metadata.name: must be like \"flights\", is \"Flights\"; correct it (Name of "
        "the object: a-z, 0-9, '-' and '.', beginning and ending with a letter or digit)"]),
    # --- duplicates
    ("[carrier, origin]", "[carrier, carrier]", [
        "job.yaml:16: HeterPSJob flights: spec.data.sparse[1]: must not be in the list twice, \"carrier\" is item 0 "
        "already; remove or rename one of the two"]),
    ("[{name: cpu}, {name: v100}]", "[{name: cpu}, {name: cpu}]", [
        "job.yaml:18: HeterPSJob flights: spec.pools[1].name: must not be in the list twice, \"cpu\" is item 0 "
        "already; remove or rename one of the two"]),
    ("label: late", "label: late, label: early", [
        "job.yaml:16: spec.data.label: given twice, first on line 16; remove one of the two"]),
    ("metadata: {name: v100}", "metadata: {name: cpu}", [
        "job.yaml:8: DevicePool cpu: metadata.name: a DevicePool of this name already exists, on line 1 (found "
        "\"cpu\"); rename or remove one",
        "job.yaml:18: HeterPSJob flights: spec.pools[1].name: must be the name of a DevicePool in this file, "
        "is \"v100\"; correct the name, or add a DevicePool document (the file has cpu)"]),
    # --- the documents of a file as a set
    ("{name: v100}]", "{name: a100}]", [
        "job.yaml:18: HeterPSJob flights: spec.pools[1].name: must be the name of a DevicePool in this file, "
        "is \"a100\"; correct the name, or add a DevicePool document (the file has cpu, v100)"]),
    ("{name: cpu}, {name: v100}]", "{name: cpu, maxUnits: 9}, {name: v100}]", [
        "job.yaml:18: HeterPSJob flights: spec.pools[0].maxUnits: must not be greater than the pool's own maxUnits, 8, "
        "is 9; lower it, or raise the pool's"]),
    ("{name: cpu}, ", "{name: cpu, maxUnits: 1}, ", [
        "job.yaml:18: HeterPSJob flights: spec.pools[0].maxUnits: must hold one pod of the pool, unitsPerPod is 2, "
        "is 1; raise it to 2 or more"]),
    ("  pools:", "  scheduling: {stages: [{pool: cpu, lastLayer: a, units: 3}]}\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.scheduling.stages[0].units: must be a multiple of the pool's "
        "unitsPerPod, 2, is 3; use 4, for example"]),
    ("  pools:", "  scheduling:\n    stages:\n    - {pool: cpu, lastLayer: a, units: 8}\n"
     "    - {pool: cpu, lastLayer: b}\n  pools:", [
        "job.yaml:21: HeterPSJob flights: spec.scheduling.stages[1].units: the stages so far need 10 units of cpu, "
        "the limit is 8; lower the units of a stage, or raise maxUnits of the pool"]),
    ("  pools:", "  encryption: Required\n  pools:", [
        "job.yaml:18: HeterPSJob flights: spec.encryption: must be Disabled, as all-reduce among workers of pool v100 "
        "is not encrypted, is \"Required\"; set spec.pools[1].maxUnits to 1 (one worker), or remove the pool from the "
        "job"]),
    ("kind: HeterPSJob", "kind: HeterPsJob", [
        "job.yaml:12: kind: must be one of DevicePool, HeterPSJob, is \"HeterPsJob\"; correct kind, or move the "
        "document to another file"]),
    ("kind: HeterPSJob\n", "", [
        "job.yaml:11: kind: must be one of DevicePool, HeterPSJob; correct kind, or move the document to "
        "another file"]),
    (JOB, JOB.replace("heterps.io/v1alpha1", "heterps.io/v1"), [
        "job.yaml:11: apiVersion: must be heterps.io/v1alpha1, is \"heterps.io/v1\"; "
        "this version of HeterPS supports no other"]),
    (JOB, JOB.replace("heterps.io/v1alpha1", "v1"), [
        "job.yaml:11: apiVersion: must be heterps.io/v1alpha1, is \"v1\"; write apiVersion: heterps.io/v1alpha1"]),
    (f"---\n{JOB}", "", [
        "job.yaml: the file has no HeterPSJob; add a document with kind: HeterPSJob"]),
    (JOB, f"{JOB}---\n{JOB}", [
        "job.yaml:20: HeterPSJob flights: the file already has a HeterPSJob, on line 11; "
        "put each job into its own file"]),
    (JOB, f"{JOB}---\n[1, 2]\n", [
        "job.yaml:20: the document is not a mapping of fields; start it with apiVersion: and kind:"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "replacement", "expected"), MALFORMED)
def test_a_malformed_manifest_is_refused_in_these_words(
    tmp_path: Path, text: str, replacement: str, expected: list[str]
) -> None:
    assert FILE.count(text) >= 1
    head, tail = FILE.rsplit(text, maxsplit=1)
    assert sorted(refused(tmp_path, head + replacement + tail)) == sorted(expected)


def test_the_table_is_long_enough() -> None:
    assert len({(text, replacement) for text, replacement, _ in MALFORMED}) >= 55


def test_all_problems_of_a_file_are_reported_at_once_in_its_order(tmp_path: Path) -> None:
    text = FILE.replace('"0.04"', "0.04").replace("GPU", "TPU").replace("4096", "0").replace("v100}]", "a100}]")
    lines = refused(tmp_path, text)
    assert [line.split(": ")[0] for line in lines] == [f"job.yaml:{line}" for line in (4, 9, 17, 18)]


def test_a_pool_that_is_faulty_in_itself_is_no_unknown_pool(tmp_path: Path) -> None:
    text = FILE.replace("deviceType: GPU", "deviceType: TPU").replace("name: v100}]", "name: v100, maxUnits: 99}]")
    [line] = refused(tmp_path, text)
    assert "deviceType" in line


def test_no_kind_of_value_in_any_field_breaks_the_reader(tmp_path: Path) -> None:
    for text in (JOB, CPU, GPU):
        for part in ("metadata: {name: flights}", "spec:", "model: ", "data: ", "training: ", "pools: ", "{name: cpu}"):
            for value in ("", "1", "text", "[1, {a: b}]", "{a: [null]}", "true", "1.5", "~"):
                if part in text:
                    head, tail = text.split(part, 1)
                    broken = f"{head}{part.split(':')[0].lstrip('{')}: {value}\n{tail.partition(chr(10))[2]}"
                    assert refused(tmp_path, f"{CPU}---\n{broken}")
