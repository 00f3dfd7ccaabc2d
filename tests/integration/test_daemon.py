"""The daemon that forks Spark's Python workers, as Spark starts it."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import uuid

SECONDS_MAX = 60.0
NUMBER = struct.Struct("!i")


def test_a_worker_on_whom_spark_hangs_up_leaves_no_traceback_in_the_jobs_log() -> None:
    password = str(uuid.uuid4()).encode()
    told = {
        "PYTHON_WORKER_FACTORY_SECRET": password.decode(),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }
    line = [sys.executable, "-m", "delivery.daemon", "pyspark.worker"]
    with subprocess.Popen(
        line, env=os.environ | told, stdin=-1, stdout=-1, stderr=-1, bufsize=0
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        (port,) = NUMBER.unpack(daemon.stdout.read(NUMBER.size))
        with socket.create_connection(("127.0.0.1", port)) as spark:
            spark.sendall(NUMBER.pack(len(password)) + password)
            with spark.makefile("rb") as answers:
                process, length = struct.unpack("!ii", answers.read(2 * NUMBER.size))
                assert process > 0
                assert answers.read(length) == b"ok"
                worker = os.pidfd_open(process)
            # Whoever writes to it from now on is told at once that nobody listens.
            spark.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ended, _, _ = select.select([worker], [], [], SECONDS_MAX)
        os.close(worker)
        assert ended, "the worker goes on, with nobody to work for"
        daemon.stdin.close()
        said = daemon.stderr.read().decode()
    assert "Traceback" not in said, said
