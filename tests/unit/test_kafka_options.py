"""Options are taken in Kafka's spelling by either library, and never shown."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import CorruptRecordError, OffsetOutOfRangeError, UnsupportedCodecError

from dedup.errors import Corrupt, InvalidUsage, Unavailable
from delivery.kafka.confluent.consumer import ConfluentConsumer
from delivery.kafka.kafka_python import errors
from delivery.kafka.opening import LIBRARIES, open_client
from delivery.kafka.options import Options, for_kafka_python, for_librdkafka
from delivery.kafka.port import BROKERS_MS_MAX, RECONNECT_MS_MAX
from tests.integration.kafka_kit import LEAVES_SOCKETS, NEVER

SECRET = "hunter2-but-longer"  # noqa: S105  this is what must not leak
NOWHERE = "127.0.0.1:9"
SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "shop-user",
    "sasl.password": SECRET,
    "ssl.ca.location": "ca.pem",
    "ssl.endpoint.identification.algorithm": "",
}


def test_tls_and_sasl_reach_librdkafka_as_they_are() -> None:
    config = for_librdkafka(Options.of(NOWHERE, SASL), "consumer")
    ours = {"bootstrap.servers": NOWHERE, "reconnect.backoff.max.ms": RECONNECT_MS_MAX}
    assert config == ours | SASL | {"ssl.endpoint.identification.algorithm": "none"}


def test_only_who_asks_questions_learns_of_brokers_by_the_clock() -> None:
    refresh = "topic.metadata.refresh.interval.ms"
    asked = {role: for_librdkafka(Options.of(NOWHERE), role) for role in ("admin", "consumer")}
    assert asked["admin"][refresh] == BROKERS_MS_MAX
    assert refresh not in asked["consumer"]
    chosen = for_librdkafka(Options.of(NOWHERE, {refresh: "1000"}), "admin")
    assert chosen[refresh] == "1000"


def test_tls_and_sasl_reach_kafka_python_by_its_own_names() -> None:
    keywords = for_kafka_python(Options.of("a:1,b:2", SASL), KafkaConsumer.DEFAULT_CONFIG)
    assert keywords == {
        "bootstrap_servers": ["a:1", "b:2"],
        "reconnect_backoff_max_ms": RECONNECT_MS_MAX,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "shop-user",
        "sasl_plain_password": SECRET,
        "ssl_cafile": "ca.pem",
        "ssl_check_hostname": False,
    }


def test_a_spark_jobs_spelling_is_understood() -> None:
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="shop-user" password="{SECRET}";'
    )
    options = Options.of(
        NOWHERE,
        {
            "kafka.sasl.jaas.config": jaas,
            "kafka.ssl.truststore.location": "ca.pem",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.check.crcs": True,
        },
    )
    assert options.given == {
        "sasl.username": "shop-user",
        "sasl.password": SECRET,
        "ssl.ca.location": "ca.pem",
        "check.crcs": "true",
    }


@pytest.mark.parametrize(
    "name", ["enable.auto.commit", "kafka.isolation.level", "acks", "group.id", "auto.offset.reset"]
)
def test_what_the_guarantee_rests_on_cannot_be_chosen(name: str) -> None:
    with pytest.raises(InvalidUsage, match=name.removeprefix("kafka.")):
        Options.of(NOWHERE, {name: "whatever"})


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_unknown_option_is_refused_by_name_and_not_by_value(library: str) -> None:
    with pytest.raises(InvalidUsage, match=r"no\.such\.option") as caught:
        open_client(NOWHERE, {"no.such.option": SECRET}, library)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_java_key_stores_are_refused_with_what_to_give_instead() -> None:
    with pytest.raises(InvalidUsage, match=r"ssl\.ca\.location"):
        Options.of(NOWHERE, {"ssl.truststore.location": "trust.jks"})


def test_a_login_module_that_cannot_be_read_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidUsage, match=r"sasl\.username") as caught:
        Options.of(NOWHERE, {"sasl.jaas.config": f"com.example.Krb5 required secret={SECRET};"})
    assert SECRET not in str(caught.value)


def test_a_value_that_is_no_number_is_refused_without_showing_it() -> None:
    options = Options.of(NOWHERE, {"linger.ms": SECRET})
    with pytest.raises(InvalidUsage, match=r"linger\.ms") as caught:
        for_kafka_python(options, KafkaProducer.DEFAULT_CONFIG)
    assert SECRET not in str(caught.value)


def test_secrets_are_in_no_repr_and_in_no_text() -> None:
    options = Options.of(NOWHERE, SASL)
    assert SECRET not in repr(options)
    assert options.redacted(f"login of shop-user with {SECRET} failed") == (
        "login of *** with *** failed"
    )
    consumer = ConfluentConsumer(
        Options.of(NOWHERE, {"sasl.password": SECRET}), group=None, buffer_bytes=1024
    )
    try:
        assert SECRET not in repr(consumer)
    finally:
        consumer.close()


@pytest.mark.filterwarnings(LEAVES_SOCKETS)
def test_a_client_that_cannot_be_made_leaves_no_thread_and_no_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("delivery.kafka.kafka_python.client._ANSWER_MS_MAX", 100)
    caplog.set_level(NEVER, "kafka")
    caplog.set_level(logging.DEBUG, "kafka.admin.client")
    before = set(threading.enumerate())
    with pytest.raises(Unavailable):
        open_client(NOWHERE, {"sasl.password": SECRET}, "kafka-python")
    assert set(threading.enumerate()) <= before
    assert SECRET not in caplog.text
    logger = logging.getLogger("kafka.admin.client")
    line = "Starting KafkaAdminClient with configuration: %s"
    assert not logger.filter(logger.makeRecord(logger.name, logging.DEBUG, "", 0, line, (), None))
    gc.collect()


def test_each_role_gets_its_own_options() -> None:
    options = Options.of(NOWHERE, {"linger.ms": "7", "fetch.max.bytes": "1000000"})
    assert "linger.ms" in for_librdkafka(options, "producer")
    assert "linger.ms" not in for_librdkafka(options, "consumer")
    assert "fetch.max.bytes" in for_librdkafka(options, "consumer")
    assert "fetch.max.bytes" not in for_librdkafka(options, "producer")
    assert for_kafka_python(options, KafkaProducer.DEFAULT_CONFIG)["linger_ms"] == 7
    assert "linger_ms" not in for_kafka_python(options, KafkaConsumer.DEFAULT_CONFIG)


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(InvalidUsage, match="confluent, kafka-python"):
        open_client(NOWHERE, {}, "pykafka")


def test_without_a_choice_our_own_sockets_serve_and_the_fast_library_answers() -> None:
    with open_client(NOWHERE) as client:
        assert client.library == "wire"
    with open_client(NOWHERE, {"security.protocol": "ssl"}) as client:
        assert client.library == "confluent"


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.kafka.opening.find_spec", lambda _: None)
    with pytest.raises(InvalidUsage, match=r"install confluent-kafka$"):
        open_client(NOWHERE, {}, "confluent")
    with pytest.raises(InvalidUsage, match=r"install confluent-kafka or kafka-python$"):
        open_client(NOWHERE)


def test_neither_library_is_needed_until_it_is_used() -> None:
    code = (
        "import sys, connectors.kafka, sinks.kafka, delivery.kafka.opening;"
        "sys.exit(sorted({'kafka', 'confluent_kafka'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (OffsetOutOfRangeError(), Unavailable, "load the lane again"),
        (UnsupportedCodecError("lz4"), InvalidUsage, "install it, or confluent-kafka"),
        (CorruptRecordError("UnicodeDecodeError(...)"), Corrupt, "kafka-delete-records"),
        (ConnectionRefusedError(), Unavailable, "nothing was changed"),
    ],
)
def test_an_error_says_what_it_means_for_the_data(
    error: Exception, kind: type[Exception], says: str
) -> None:
    wrong = errors.of_read("read", "orders[0]", error, str(error))
    assert isinstance(wrong, kind)
    assert says in wrong.hint
