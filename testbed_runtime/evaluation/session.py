"""A Spark session sized for this machine (local[*], loopback only, no UI): the Java it needs, the folder it writes to, its errors."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from testbed_runtime.core.errors import HeadgateError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MINIMUM = 17
"""Spark 4 runs on Java 17 and 21."""
JAVA_ANSWER_S = 20.0
"""`java -version` answers in 0.1 s. A busy machine gets more time."""
LOOPBACK = "127.0.0.1"
OPEN_FILES = 1024
"""Files that Spark may need to open: its 280 JARs, sockets and files of data. With 320 it does not start."""
USER_WITHOUT_A_NAME = "headgate"
"""The name of a user whose id has no name, for Hadoop."""
DRIVER_MEMORY = "1g"
"""Memory of the driver. A run of ten trials is a few hundred thousand rows, and 1 GiB holds it many times over."""
JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1",  # the driver lives for seconds: C2 would not pay back
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
)
"""Options of the JVM. They include no class archive (AppCDS): on Java 17 it saves a fifth of the processor time, but costs 180 MB and a
slow first run."""
TEXT_MAX = 600
"""The longest message in characters."""
DRIVER_ENDED = ("Py4JNetworkError", "ConnectionRefusedError", "Py4JError", "ConnectionResetError")
_TRACEBACK = "Traceback (most recent call last):"
NO_JAVA = (
    f"Evaluation needs Java {JAVA_MINIMUM} or later, and {{found}}. Install it (Debian: apt-get install "
    f"openjdk-{JAVA_MINIMUM}-jre-headless) or set JAVA_HOME to it."
)
NO_PYSPARK = (
    "Evaluation needs PySpark, and it is not installed. Install headgate with its extra: headgate[spark]."
)


class Java(Struct, frozen=True):
    """A Java, with its version as it prints it: `17.0.15`."""

    binary: Path
    version: str

    @property
    def home(self) -> Path:
        return self.binary.parent.parent


def parse_java_version(text: str) -> tuple[str, int | None]:
    """Return the version in the output of `java -version`, and its major number: 8 for `1.8.0_402`, 17 for `17.0.15`."""
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', text)
    return (found[1], int(found[2])) if found else ("", None)


def require_spark(environment: Mapping[str, str]) -> None:
    """Raise HeadgateError if Spark cannot start here, before anything is run for it or replaced by its results."""
    find_java(environment)
    if importlib.util.find_spec("pyspark") is None:
        raise HeadgateError(NO_PYSPARK)


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the Java of JAVA_HOME, else of PATH. Raises HeadgateError that names what to install."""
    home = environment.get("JAVA_HOME", "")
    binary = Path(home) / "bin" / "java" if home else None
    if binary is None or not binary.exists():
        on_path = shutil.which("java", path=environment.get("PATH"))
        binary = Path(on_path).resolve() if on_path else None
    if binary is None:
        raise HeadgateError(NO_JAVA.format(found="neither JAVA_HOME nor PATH has java"))
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own java
            [str(binary), "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HeadgateError(NO_JAVA.format(found=f"{binary} does not run ({error})")) from None
    version, major = parse_java_version(answer.stderr + answer.stdout)
    if major is None or major < JAVA_MINIMUM:
        raise HeadgateError(NO_JAVA.format(found=f"{binary} is Java {major or 'of an unknown version'}"))
    return Java(binary, version)


def settings(scratch: Path) -> dict[str, str]:
    """Return the settings of a small driver that writes only below `scratch`."""
    log4j = Path(__file__).with_name("log4j2.properties")
    own = (f"-Dlog4j2.configurationFile={log4j.as_uri()}", f"-Djava.io.tmpdir={scratch}")
    return {
        "spark.app.name": "headgate-evaluation",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.host": LOOPBACK,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": " ".join((*JVM_OPTIONS, *own)),
        "spark.local.dir": str(scratch),
        "spark.jars.ivy": str(scratch / "ivy"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 2, 8)),
        "spark.sql.adaptive.enabled": "false",  # its extra stages cost more than they save on small tables
        "spark.sql.codegen.wholeStage": "false",  # compiling Java costs more than interpreting so few rows:
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # together a tenth of the driver's processor time
        "spark.sql.session.timeZone": "UTC",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
    }


def _few_files() -> str:
    """Return a hint if this account may open too few files for Spark; otherwise empty. Java raises the soft limit by itself."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if not 0 <= limit < OPEN_FILES:
        return ""
    return f" A process here may open {limit} files, and Spark needs {OPEN_FILES}: raise the limit (`ulimit -n`)."


@contextmanager
def spark_session(
    scratch: Path, *, master: str = "", more: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a Spark session for the duration of a block: `local[*]`, or another `master` with `more` settings. Raises HeadgateError when
    Java or PySpark is missing, or Spark does not start."""
    java_home = find_java(os.environ).home
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise HeadgateError(NO_PYSPARK) from None
    # PySpark reads these from the environment before it applies the settings of a session.
    os.environ |= {"JAVA_HOME": str(java_home), "PYSPARK_PYTHON": sys.executable}
    chosen = {**settings(scratch), "spark.master": master or "local[*]", **(more or {})}
    if chosen["spark.driver.host"] == LOOPBACK:
        os.environ |= {"SPARK_LOCAL_IP": LOOPBACK, "SPARK_LOCAL_HOSTNAME": "localhost"}
    builder = SparkSession.builder
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        if not has_a_name(os.getuid()):
            _start_as_nameless(chosen)
        session = builder.getOrCreate()
    except Exception as error:
        raise HeadgateError(f"Spark did not start: {first_line(error)}{_few_files()}") from error
    try:
        yield session
    finally:
        session.stop()


def has_a_name(uid: int) -> bool:
    """Return whether a user id is in the user database. In a container (`docker run --user 1000`) it often is not."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _start_as_nameless(chosen: Mapping[str, str]) -> None:
    """Start the JVM and the Spark context of a user without a name; the session then uses them. Hadoop cannot log in as such a
    user, so it is given a name."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
    gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
    users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
    users.setLoginUser(users.createRemoteUser(USER_WITHOUT_A_NAME))
    SparkContext(conf=conf, gateway=gateway)


def _prefix(pid: int) -> str:
    return f"headgate-spark-{pid}-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder for the files that Spark writes."""
    folder = Path(tempfile.mkdtemp(prefix=_prefix(os.getpid())))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_scratch(pid: int) -> None:
    """Remove the scratch folder of a process that was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(pid)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def one_line(error: BaseException) -> str:
    """Return an error as one line. For a failed Spark job, return the Python error inside."""
    if isinstance(error, HeadgateError):
        return str(error)[:TEXT_MAX]
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    traced = next((n for n, line in enumerate(lines) if line.endswith(_TRACEBACK)), None)
    if traced is not None:
        # Frames and their sources are indented.
        named = (line for line in lines[traced + 1 :] if not line.startswith(" "))
        return next(named, lines[0])[:TEXT_MAX]
    if type(error).__name__ in DRIVER_ENDED:
        return "The Spark driver has ended before its work was done (killed, or out of memory)."
    return f"{type(error).__name__}: {lines[0].strip() if lines else 'no message'}"[:TEXT_MAX]
