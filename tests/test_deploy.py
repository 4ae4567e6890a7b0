# SPDX-License-Identifier: Apache-2.0
"""What deploy/ ships is checked with the tools that read it: helm, the Kubernetes schemas, hadolint, systemd."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from service.cli.demo.hudi import HudiLake
from service.cli.demo.settings import config_text
from service.control.config.loader import load_config
from service.control.config.table_settings import check_rules

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "lakefold"
BIN = Path(sys.executable).parent
#: the oldest Kubernetes that the chart claims to run on
KUBERNETES = "1.27"
VARIANTS = {
    "as shipped": [],
    "executors as Spark drivers, everything on": [
        "spark.master=k8s://https://kubernetes.default.svc",
        "serviceMonitor.enabled=true",
        "lake.supplementalGroups={2000,2001}",
        "podAnnotations.team=data",
        "nodeSelector.disk=fast",
    ],
    "little": ["podDisruptionBudget.enabled=false", "serviceAccount.create=false", "scheduler.replicas=2"],
}


def run(*command: str | Path, check: bool = True, **options: Any) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def rendered(*settings: str) -> list[dict[str, Any]]:
    words = [word for setting in settings for word in ("--set", setting)]
    done = run(BIN / "helm", "template", "lake", CHART, "--namespace", "data", *words)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture(scope="module", params=VARIANTS)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return rendered(*VARIANTS[request.param])


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def pods(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for deployment in of_kind(manifests, "Deployment"):
        yield deployment["spec"]["template"]["spec"]
    for config in of_kind(manifests, "ConfigMap"):
        if "executor-pod.yaml" in config["data"]:
            yield yaml.safe_load(config["data"]["executor-pod.yaml"])["spec"]


def test_helm_finds_nothing_wrong_with_the_chart():
    run(BIN / "helm", "lint", "--strict", CHART)


def test_every_manifest_is_valid_for_kubernetes(manifests):
    known = [manifest for manifest in manifests if manifest["kind"] != "ServiceMonitor"]  # the operator's own kind
    assert len(known) >= 5
    for manifest in known:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_each_role_is_a_deployment_that_serves_it(manifests):
    roles = {
        deployment["metadata"]["labels"]["app.kubernetes.io/component"]: deployment["spec"]["template"]["spec"]
        for deployment in of_kind(manifests, "Deployment")
    }
    assert set(roles) == {"scheduler", "executor", "api"}
    for role, pod in roles.items():
        (container,) = pod["containers"]
        assert container["args"] == ["serve", "--role", role]
        assert [probe in container for probe in ("startupProbe", "livenessProbe", "readinessProbe")] == [True] * 3
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in pod["volumes"]}


def test_no_container_runs_as_root_or_writes_outside_its_volumes(manifests):
    for pod in pods(manifests):
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_only_executors_may_write_the_lake(manifests):
    for deployment in of_kind(manifests, "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (lake,) = [mount for mount in container["volumeMounts"] if mount["name"] == "lake"]
        assert lake["readOnly"] is not (container["name"] == "executor")


def test_the_configuration_of_the_chart_is_one_that_lakefold_takes(manifests, tmp_path, monkeypatch):
    (config,) = of_kind(manifests, "ConfigMap")
    file = tmp_path / "lakefold.toml"
    file.write_text(config["data"]["lakefold.toml"])
    (executor,) = [d for d in of_kind(manifests, "Deployment") if d["metadata"]["name"].endswith("executor")]
    for variable in executor["spec"]["template"]["spec"]["containers"][0]["env"]:
        value = variable.get("value", "postgresql+psycopg://host/lakefold")
        monkeypatch.setenv(variable["name"], value.replace("$(POD_IP)", "10.0.0.7"))
    settings = load_config(file)
    check_rules(settings)
    assert settings.http.address == "0.0.0.0"
    if settings.spark["spark.master"].startswith("k8s://"):
        assert settings.spark["spark.driver.host"] == "10.0.0.7"
        assert settings.spark["spark.kubernetes.executor.podTemplateFile"] == "/etc/lakefold/executor-pod.yaml"


@pytest.mark.parametrize(
    ("setting", "told"),
    [("http.port=80", "http.port"), ("spark.master=yarn", "spark.master"), ("exekutor.replicas=1", "exekutor")],
)
def test_a_value_that_can_not_work_is_refused_before_anything_is_installed(setting, told):
    done = run(BIN / "helm", "template", "lake", CHART, "--set", setting, check=False)
    assert done.returncode != 0
    assert told in done.stderr


def test_the_dockerfile_has_no_finding_and_copies_existing_files():
    run(BIN / "hadolint", DEPLOY / "Dockerfile")
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"^ENTRYPOINT .*", text, re.MULTILINE) == ['ENTRYPOINT ["lakefold"]']
    assert re.findall(r"^USER (.*)", text, re.MULTILINE) == ["10001"]
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for line in re.findall(r"^COPY (?!--from)(.*)", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source == "." or any(Path(source).is_relative_to(path) for path in kept), source
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(packages["packages"]) <= set(kept)


def test_the_image_can_be_built():
    if shutil.which("docker") is None or run("docker", "info", check=False).returncode != 0:
        pytest.skip("no Docker daemon answers here; the image is built where one does")
    run("docker", "build", "-f", DEPLOY / "Dockerfile", "-t", "lakefold:test", ROOT, timeout=550)
    assert run("docker", "run", "--rm", "--read-only", "lakefold:test", "--version").stdout.startswith("lakefold ")


def test_spark_executors_on_kubernetes_run_a_class_of_pyspark():
    script = DEPLOY / "spark" / "executor.sh"
    run("bash", "-n", script)
    assert re.search(r"submodule_search_locations", script.read_text())
    pyspark = Path(run(sys.executable, "-c", "import pyspark; print(pyspark.__path__[0])").stdout.strip())
    (jar,) = pyspark.glob("jars/spark-kubernetes_*.jar")
    (name,) = re.findall(r"org\.apache\.spark[\w.]+", script.read_text())
    assert f"{name.replace('.', '/')}.class" in run(sys.executable, "-m", "zipfile", "-l", jar).stdout


def test_compose_starts_existing_commands_in_a_working_order(tmp_path, monkeypatch):
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"postgres", "prepare", "lakefold", "writer", "prometheus", "grafana"}
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), f"{name}: {source}"
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} listens beyond loopback"
        image = service["image"]
        assert image == "lakefold" or re.search(r":v?\d", image), f"{name}: {image} is not pinned"
        assert set(service.get("depends_on", {})) <= set(services)
    for variable, value in services["lakefold"]["environment"].items():
        monkeypatch.setenv(variable, value)
    settings = load_config(DEPLOY / "compose" / "lakefold.toml")
    check_rules(settings)
    demo = tmp_path / "lakefold.toml"
    demo.write_text(config_text(HudiLake(tmp_path).source_config, tmp_path / "db", 9464, "1h", {}))
    assert settings.table_rules[0].write_options == tomllib.loads(demo.read_text())["tables"][0]["write_options"]


def test_the_systemd_unit_is_valid_and_hardened(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here; Debian's package systemd has it")
    unit = DEPLOY / "systemd" / "lakefold@.service"
    # verify wants the program to be there
    there = tmp_path / unit.name
    there.write_text(unit.read_text().replace("/opt/lakefold/bin/lakefold", sys.executable))
    done = run("systemd-analyze", "verify", there, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    exposure = run("systemd-analyze", "security", "--offline=yes", "--threshold=25", there, check=False)
    assert exposure.returncode == 0, exposure.stdout[-300:]


def test_every_key_of_the_unit_is_set_once():
    lines = [line.split("=")[0] for line in (DEPLOY / "systemd" / "lakefold@.service").read_text().splitlines()]
    keys = sorted(key for key in lines if re.fullmatch(r"[A-Z]\w+", key) and key not in ("Environment",))
    assert [key for key, following in pairwise(keys) if key == following] == []
