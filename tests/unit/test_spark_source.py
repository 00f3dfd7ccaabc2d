"""How a cluster is entered, as Spark's Kafka source spells it."""

from __future__ import annotations

import pytest

from dedup.errors import InvalidUsage
from delivery.host.spec import Plan
from delivery.microbatch.source import kafka_options

SPARKS = "kafka."


def spelled(**given: str) -> dict[str, str]:
    """Return what Spark is told of options, whose names have underscores here, but where the cluster is."""
    options = {name.replace("_", "."): value for name, value in given.items()}
    found = kafka_options(Plan(catalog="memory:", kafka="here:9092", stages=(), options=options))
    assert found.pop(SPARKS + "bootstrap.servers") == "here:9092"
    return {name.removeprefix(SPARKS): value for name, value in found.items()}


def test_a_login_is_a_line_of_javas() -> None:
    told = {"sasl_username": "me", "sasl_password": "secret"}
    line = 'required username="me" password="secret";'
    for mechanism, module in (("PLAIN", "plain.Plain"), ("SCRAM-SHA-512", "scram.Scram")):
        found = spelled(**told, sasl_mechanisms=mechanism)
        assert found == {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule {line}",
        }


def test_certificates_are_stores_of_javas() -> None:
    mine = {"ssl_certificate_location": "me.pem", "ssl_key_location": "me.pem"}
    assert spelled(ssl_ca_location="ca.pem", **mine, ssl_key_password="secret") == {  # noqa: S106 - nobody's
        "ssl.truststore.location": "ca.pem",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.location": "me.pem",
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "secret",
    }
    javas = {"ssl_keystore_location": "me.pem", "ssl_keystore_type": "PEM"}
    assert spelled(**javas) == {name.replace("_", "."): value for name, value in javas.items()}


def test_a_certificate_and_a_key_of_two_files_are_refused() -> None:
    with pytest.raises(InvalidUsage, match="from one PEM file; nothing was started: put both"):
        spelled(ssl_certificate_location="me.pem", ssl_key_location="me.key")


def test_a_name_that_is_not_looked_at_is_nothing_to_java() -> None:
    found = spelled(ssl_endpoint_identification_algorithm="none", kafka_security_protocol="SSL")
    assert found == {"ssl.endpoint.identification.algorithm": "", "security.protocol": "SSL"}
