"""docs/ci.md does what it says: its recipes are run as they stand, as the runner of that service would do it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.kubernetes.cluster import ROOT, Cluster, search_path
from tests.kubernetes.rendering import CHART

PAGE = ROOT / "docs" / "ci.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDER = "streaming-checks"
"""The page's folder of scenarios, and its namespace."""
LIMIT_S = 900
"""One command; the longest is `make setup` without a cache of pip's."""
EXPRESSION = re.compile(r"\$\{\{ *([\w.]+) *\}\}")
SKIPPED = {"actions/setup-python", "actions/setup-java", "actions/cache", "actions/upload-artifact"}
"""Actions of GitHub that need its service. This machine has what the first two install; the others only keep files."""
CHECKOUT = "actions/checkout"
ACCOUNT = "pipeline"
CLONE = ["git", "clone", "--depth", "1", "--branch", "REF", "https://gitlab.example/OWNER/headgate.git"]


@dataclass(slots=True)
class Recipe:
    """Commands of one job in their order, with their own variables; those after a failure have `always`."""

    commands: list[tuple[str, dict[str, str], bool]]
    variables: dict[str, str] = field(default_factory=dict)


def blocks(kind: str) -> list[str]:
    return [text for name, text in BLOCK.findall(PAGE.read_text()) if name == kind]


def parsed() -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """GitHub's whole workflow, GitLab's whole job, and what replaces their commands for a cluster."""
    github, gitlab, steps, script = map(yaml.safe_load, blocks("yaml"))
    return github, gitlab, steps, script


def runs_scenarios(command: str) -> bool:
    return "headgate ci " in command


def github(*, cluster: bool) -> Recipe:
    """The job's commands. For a cluster, the step that runs `headgate ci` is replaced as the page says."""
    workflow, _, replacing, _ = parsed()
    commands = []
    for step in workflow["jobs"]["headgate"]["steps"]:
        for one in replacing if cluster and runs_scenarios(step.get("run", "")) else [step]:
            if "uses" not in one:
                commands.append((one["run"], one.get("env", {}), one.get("if") == "always()"))
            elif (action := one["uses"].split("@")[0]) == CHECKOUT:
                target = one.get("with", {}).get("path")
                commands += [(" ".join([*CLONE, target]), {}, False)] if target else []
            else:
                assert action in SKIPPED, f"{action}: say here whether it is run or skipped"
    return Recipe(commands)


def gitlab(*, cluster: bool) -> Recipe:
    _, whole, _, replacing = parsed()
    job = {**whole["streaming-checks"], **(replacing if cluster else {})}
    variables = {"CI_PROJECT_DIR": "$PWD", **job["variables"]}
    return Recipe([(c, {}, False) for c in [*job["before_script"], *job["script"]]], variables)


RECIPES = {"github": github, "gitlab": gitlab}


def test_every_block_of_the_page_is_known_and_every_command_is_shell():
    """A recipe that is added to the page is not left out here."""
    assert len(blocks("console")) == 2  # traces, and a cluster
    assert [name for name, _ in BLOCK.findall(PAGE.read_text())].count("yaml") == 4
    for recipe in (github(cluster=True), github(cluster=False), gitlab(cluster=True), gitlab(cluster=False)):
        assert sum(runs_scenarios(command) for command, _, _ in recipe.commands) == 1
        for command, _, _ in recipe.commands:
            done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The reader's repository with one scenario, the chart's small one."""
    folder = tmp_path / "repository" / FOLDER / "late-credit"
    folder.mkdir(parents=True)
    (folder / "scenario.yaml").write_text((CHART / "files" / "mini.yaml").read_text())
    return tmp_path / "repository"


def environment(workspace: Path) -> dict[str, str]:
    """Return what the runner sets. The page's repository is this checkout, at the commit that is checked out."""
    remote = workspace.parent / "OWNER" / "headgate.git"
    for command in (["clone", "-q", "--bare", str(ROOT), str(remote)], ["-C", str(remote), "branch", "REF"]):
        if not (remote / "refs" / "heads" / "REF").exists():
            subprocess.run(["git", *command], check=True, capture_output=True)
    found = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KUBECONFIG")}
    return {
        **found,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{workspace.parent}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://gitlab.example/",
        "RUNNER_TEMP": str(workspace.parent),
        "GITHUB_STEP_SUMMARY": str(workspace.parent / "summary.md"),
    }


@contextmanager
def account(cluster: Cluster, folder: Path) -> Iterator[Path]:
    """The kubeconfig of an account with the role `edit` in the page's namespace, as the page asks for."""
    cluster.kubectl("delete", "namespace", FOLDER, "--ignore-not-found", "--timeout=90s")
    cluster.kubectl("create", "namespace", FOLDER)
    try:
        cluster.kubectl("-n", FOLDER, "create", "serviceaccount", ACCOUNT)
        binding = (
            "create",
            "rolebinding",
            ACCOUNT,
            "--clusterrole=edit",
            f"--serviceaccount={FOLDER}:{ACCOUNT}",
        )
        cluster.kubectl("-n", FOLDER, *binding)
        token = cluster.kubectl("-n", FOLDER, "create", "token", ACCOUNT, "--duration=1h")
        config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
        config["users"] = [{"name": one["name"], "user": {"token": token}} for one in config["users"]]
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        yield path
    finally:
        # the operator has to see the deletion: after the last test it is removed
        cluster.kubectl("delete", "namespace", FOLDER, "--ignore-not-found", "--timeout=90s")


def run(recipe: Recipe, workspace: Path, more: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Run the commands one after the other, each in a shell of its own that begins in the repository, as the services do."""
    variables = {**environment(workspace), **more}
    contexts = {"runner.temp": variables["RUNNER_TEMP"], **secrets}
    for name, value in recipe.variables.items():
        variables[name] = value.replace("$PWD", str(workspace)).replace("$CI_PROJECT_DIR", str(workspace))
    for command, own, _ in recipe.commands:
        filled = {name: EXPRESSION.sub(lambda m: contexts[m[1]], value) for name, value in own.items()}
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=workspace,
            env={**variables, **filled},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def check_results(workspace: Path) -> None:
    """The files of the page's table, for a run that passed."""
    runs = workspace / "headgate-runs"
    suites = ElementTree.parse(runs / "junit.xml").getroot()
    assert list(suites.iter("testcase"))
    assert not [*suites.iter("failure"), *suites.iter("error")]
    assert "Pass" in (runs / "summary.md").read_text()
    [report] = runs.glob("*/report.html")
    assert json.loads(report.with_name("verdict.json").read_text())["verdict"] == "Pass"


@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_the_commands_for_a_cluster_work_for_an_account_with_the_role_edit(
    installed: Cluster, workspace: Path
):
    """With the kubeconfig of the page's text at the place of its example."""
    (block,) = (b for b in blocks("console") if "--on kubernetes" in b)
    with account(installed, workspace.parent) as kubeconfig:
        assert block.count("/path/to/kubeconfig") == 1
        command = block.replace("/path/to/kubeconfig", str(kubeconfig))
        more = {"PATH": search_path(), "PYTHONPATH": os.pathsep.join(sys.path)}
        run(Recipe([(command, {}, False)]), workspace, more, {})
    check_results(workspace)


@pytest.mark.cluster
@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("service", RECIPES)
def test_a_recipe_for_a_cluster_works_from_the_clone_to_the_reports(
    installed: Cluster, workspace: Path, service: str
):
    """The checkout is cloned and set up, the runs are made with the kubeconfig that the service hands over."""
    with account(installed, workspace.parent) as kubeconfig:
        text = kubeconfig.read_text()
        kept = {"KUBECONFIG": str(kubeconfig)} if service == "gitlab" else {}  # a variable of type File
        run(RECIPES[service](cluster=True), workspace, kept, {"secrets.KUBECONFIG_CONTENT": text})
    check_results(workspace)


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("service", RECIPES)
def test_a_recipe_without_a_cluster_works_from_the_clone_to_the_reports(workspace: Path, service: str):
    """On this machine, with real processes and a real Spark."""
    run(RECIPES[service](cluster=False), workspace, {}, {})
    check_results(workspace)
