"""`make chart` packages the chart, signs it and pushes it as an OCI artifact that Helm can install."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.kubernetes import local_registry
from tests.kubernetes.rendering import program
from tools.images import settings

pytestmark = [pytest.mark.helm, pytest.mark.timeout(120)]
KEY = "chart@example.com"
GPG = ("gpg", "--batch", "--pinentry-mode", "loopback", "--passphrase", "")


def run(*command: str, cwd: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The parts of the checkout that `make chart` reads, so that no package is left in the real one."""
    made = tmp_path / "checkout"
    made.mkdir()
    for name in ("Makefile", "helm", "tools", ".venv", "requirements.lock", "pyproject.toml"):
        if (settings.ROOT / name).exists():
            (made / name).symlink_to(settings.ROOT / name)
    return made


def test_a_signed_chart_is_pushed_and_pulled(checkout: Path, tmp_path: Path):
    """Helm pulls the project's version from the registry and verifies its signature. The chart has the name and the tag of an image, so it
    is below another path than the images with the same prefix, which it would replace."""
    if shutil.which("gpg") is None:
        pytest.skip("needs gpg")
    helm, keys = program("helm"), tmp_path / "keys"
    keys.mkdir(mode=0o700)
    tls = local_registry.certificate(tmp_path, "127.0.0.1")
    environment = {
        **os.environ,
        "GNUPGHOME": str(keys),
        "SSL_CERT_FILE": str(tmp_path / "ca.crt"),
        "PATH": f"{Path(helm).parent}:{os.environ['PATH']}",
    }
    run(*GPG, "--quick-generate-key", KEY, "rsa2048", cwd=tmp_path, environment=environment)
    for ring, export in (("secring.gpg", "--export-secret-keys"), ("pubring.gpg", "--export")):
        run(*GPG, "--output", str(keys / ring), export, KEY, cwd=tmp_path, environment=environment)
    # gpg started it for this folder
    run("gpgconf", "--kill", "gpg-agent", cwd=tmp_path, environment=environment)
    with local_registry.serving(tmp_path / "registry", tls=tls) as registry:
        make = ("make", "--no-print-directory", "-o", "setup", "chart")
        push = (f"PUSH={registry.address}/apps", f"SIGN={KEY}")
        run(*make, *push, cwd=checkout, environment=environment)
        source = f"oci://{registry.address}/apps/charts/headgate"
        verified = ("--verify", "--keyring", str(keys / "pubring.gpg"))
        run(
            helm,
            "pull",
            source,
            "--version",
            settings.VERSION,
            *verified,
            cwd=tmp_path,
            environment=environment,
        )
    images = {f"apps/{name}" for image in settings.IMAGES for name in settings.names(image, "abc")}
    assert registry.tags
    assert not images & registry.tags.keys()
    assert (tmp_path / f"headgate-{settings.VERSION}.tgz").exists()
