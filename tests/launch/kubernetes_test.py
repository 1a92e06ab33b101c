"""launch/kubernetes: its objects in a cluster; launch/Dockerfile."""

import json
import random
import re

import pytest
import yaml
from processes import ROOT

from tf_contrastive.distribution import cluster

_GPUS = ["--image=r/t:gpu", "--nodes=3", "--gpus_per_node=8", "--claim=data"]


def _objects(project, *words):
    words = ("launch/kubernetes", "--dry_run", *words)
    done = project.run(*words, status=0)
    return list(yaml.safe_load_all(done.stdout))


def _expanded(text, variables):
    """Replaces $(NAME) as the kubelet does; $$ is $."""
    return re.sub(
        r"\$\$|\$\((\w+)\)",
        lambda m: variables.get(m[1], m[0]) if m[1] else "$",
        text,
    )


def _started(pod, facts):
    """Returns what the kubelet makes of a container: arguments, variables."""
    (container,) = pod["containers"]
    variables = {}
    for each in container["env"]:
        if "value" in each:
            value = _expanded(each["value"], variables)
        else:
            value = facts[each["valueFrom"]["fieldRef"]["fieldPath"]]
        variables[each["name"]] = value
    return [_expanded(a, variables) for a in container["args"]], variables


def _facts(index, uid):
    job = "batch.kubernetes.io/job-completion-index"
    return {
        f"metadata.annotations['{job}']": str(index),
        "metadata.labels['batch.kubernetes.io/controller-uid']": "job",
        "metadata.uid": uid,
    }


def test_workers_of_a_job_find_each_other(project):
    words = [*_GPUS, "pretrain"]
    service, job = _objects(project, *words)
    assert service["spec"]["clusterIP"] == "None"
    pod = job["spec"]["template"]["spec"]
    # The name of a pod: JOB-INDEX.SUBDOMAIN, if a service has that name.
    assert pod["subdomain"] == service["metadata"]["name"]
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 3
    hosts = [f"{name}-{i}.{pod['subdomain']}:2222" for i in range(3)]
    attempts = set()
    for index in range(3):
        _, variables = _started(pod, _facts(index, f"pod-{index}"))
        workers = cluster.from_environment(variables)
        assert workers.rank == index
        assert [address for _, address in workers.tasks] == hosts
        attempts.add(variables["TF_CONTRASTIVE_ATTEMPT"])
    assert len({a.rpartition("/")[0] for a in attempts}) == 1
    assert len(attempts) == 3
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 8, "cpu": 64, "memory": "256Gi"}
    # The same is applied.
    project.run("launch/kubernetes", *words, status=0)
    assert project.calls() == [["kubectl", "apply", "-f", "-"]]
    applied = (project.folder / "applied").read_text()
    assert list(yaml.safe_load_all(applied)) == [service, job]


def test_a_stopped_or_preempted_worker_is_started_again_without_counting(
    project,
):
    *_, job = _objects(project, *_GPUS, "--retries=7", "evaluate")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # Required with a policy.
    stopped, preempted = job["spec"]["podFailurePolicy"]["rules"]
    assert {stopped["action"], preempted["action"]} == {"Ignore"}
    codes = {"containerName": "run", "operator": "In", "values": [42]}
    assert stopped["onExitCodes"] == codes
    assert pod["containers"][0]["name"] == "run"
    assert preempted["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert job["spec"]["backoffLimit"] == 7


@pytest.mark.parametrize(
    ("kind", "accelerator", "topology", "chips"),
    [
        ("v5litepod-8", "tpu-v5-lite-podslice", "2x4", 8),
        ("v6e-4", "tpu-v6e-slice", "2x2", 4),
        ("v4-8", "tpu-v4-podslice", "2x2x1", 4),
    ],
)
def test_a_tpu_is_chosen_by_its_labels(
    project, kind, accelerator, topology, chips
):
    words = ["--image=r/t:tpu", f"--tpu={kind}", "pretrain"]
    (jobset,) = _objects(project, *words)
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    (job,) = jobset["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["google.com/tpu"] == chips
    arguments, variables = _started(pod, _facts(0, "pod"))
    assert arguments == ["pretrain", "--strategy=tpu", "--tpu=local"]
    assert cluster.from_environment(variables) is None


def test_arguments_arrive_unchanged(project):
    generator = random.Random(0)
    characters = "ab '\"\\$`*?;&|<>(){}[]~#!:%@,-=\u00e9\U0001f600"
    words = ["--flag=$(HOME) $$(A) ${B}", *("true", "1", "0x1", "- a", "~")]
    words += [
        "".join(generator.choices(characters, k=generator.randrange(9)))
        for _ in range(100)
    ]
    (job,) = _objects(project, "--image=i", "a", *words)
    arguments, _ = _started(job["spec"]["template"]["spec"], _facts(0, "pod"))
    assert arguments == ["a", *words]


# ---- The container -----------------------------------------------------------


def test_the_container_copies_what_exists_and_runs_as_a_user():
    file = (ROOT / "launch" / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.*) \S+$", file, re.M)
    assert copied
    for source in " ".join(copied).split():
        assert (ROOT / source).exists(), source
    # Kubernetes proves by the number that it is not root.
    assert re.findall(r"^USER (.*)$", file, re.M)[-1:] == ["1000"]
    # A list is not run by a shell, which would keep SIGTERM to itself.
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", file, re.M)
    assert json.loads(entry)[-2:] == ["-m", "tf_contrastive"]
