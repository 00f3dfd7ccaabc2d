"""What is said to brokers and understood of them is what kafka-python says and understands."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

from dedup.model import TopicId
from delivery.kafka.wire import protocol
from delivery.kafka.wire.protocol import FetchedPart, Node, Part, Produced

ONE, OTHER = TopicId(bytes(range(16))), TopicId(bytes(range(16, 32)))
CORRELATION = (7).to_bytes(4, "big")
#: An answer's header of the new kind ends with its tags.
HEAD = CORRELATION + b"\0"


def said(request, body, version):
    return request.decode(bytes(body), version=version)


def answer(response, version, head=HEAD):
    return memoryview(head + bytes(response.encode(version=version)))


def test_a_request_is_framed_as_the_library_frames_it() -> None:
    ours = b"".join(protocol.framed(protocol.METADATA, 7, protocol.metadata(["orders"])))
    theirs = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(topic_id=uuid.UUID(int=0), name="orders")],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    theirs.with_header(correlation_id=7, client_id="delivery")
    assert ours == bytes(theirs.encode(version=12, header=True, framed=True))


def test_questions_of_versions_and_identities_are_understood() -> None:
    asked = said(ApiVersionsRequest, protocol.api_versions(), 3)
    assert (asked.client_software_name, asked.client_software_version) == ("delivery", "1")
    asked = said(InitProducerIdRequest, protocol.init_producer_id(), 4)
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == (None, -1, -1)


@given(
    st.dictionaries(
        st.builds(Part, st.sampled_from([ONE, OTHER]), st.integers(0, 200)),
        st.integers(0, 1 << 60),
        max_size=200,
    )
)
def test_a_fetch_says_where_each_partition_begins(positions) -> None:
    body = protocol.fetch(positions, wait_ms=50, bytes_max=1 << 20, part_bytes_max=1 << 16)
    asked = said(FetchRequest, body, 13)
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (50, 1, 1 << 20)
    assert (asked.isolation_level, asked.session_id, asked.session_epoch) == (1, 0, -1)
    understood = {
        Part(TopicId(uuid.UUID(str(topic.topic_id)).bytes), part.partition): part.fetch_offset
        for topic in asked.topics
        for part in topic.partitions
    }
    assert understood == positions
    assert all(p.partition_max_bytes == 1 << 16 for t in asked.topics for p in t.partitions)


def test_a_write_carries_a_batch_for_each_partition() -> None:
    batches = {"orders": [(0, b"first"), (3, bytearray(b"x" * 300))], "bills": [(1, b"")]}
    body = b"".join(protocol.produce(batches, timeout_ms=9000))
    asked = said(ProduceRequest, body, 9)
    assert (asked.transactional_id, asked.acks, asked.timeout_ms) == (None, -1, 9000)
    understood = {
        topic.name: [(part.index, bytes(part.records)) for part in topic.partition_data]
        for topic in asked.topic_data
    }
    assert understood == {
        name: [(number, bytes(batch)) for number, batch in parts] for name, parts in batches.items()
    }


@pytest.mark.parametrize(
    ("most", "speaks"), [({}, True), ({protocol.FETCH: 12}, False), ({protocol.PRODUCE: 8}, False)]
)
def test_who_is_too_old_is_found_out(most: dict[int, int], *, speaks: bool) -> None:
    versions = [
        ApiVersionsResponse.ApiVersion(
            api_key=api, min_version=0, max_version=most.get(api, version)
        )
        for api, version in protocol.SPOKEN.items()
    ]
    told = ApiVersionsResponse(error_code=0, api_keys=versions, throttle_time_ms=0)
    assert protocol.read_api_versions(answer(told, 3, CORRELATION)) is speaks
    fewer = ApiVersionsResponse(error_code=0, api_keys=versions[1:], throttle_time_ms=0)
    assert not protocol.read_api_versions(answer(fewer, 3, CORRELATION))
    refused = ApiVersionsResponse(error_code=35, api_keys=[], throttle_time_ms=0)
    assert not protocol.read_api_versions(answer(refused, 3, CORRELATION))


def test_metadata_tells_brokers_leaders_and_what_is_missing() -> None:
    topic = MetadataResponse.MetadataResponseTopic
    part = topic.MetadataResponsePartition

    def partition(number: int, leader: int):
        return part(
            error_code=0,
            partition_index=number,
            leader_id=leader,
            leader_epoch=4,
            replica_nodes=[1, 2, 3],
            isr_nodes=[1],
            offline_replicas=[],
        )

    told = MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=1, host="a", port=9, rack=None),
            MetadataResponse.MetadataResponseBroker(node_id=2, host="b", port=10, rack="r"),
        ],
        cluster_id="c",
        controller_id=1,
        topics=[
            topic(
                error_code=0,
                name="orders",
                topic_id=uuid.UUID(bytes=bytes(ONE)),
                is_internal=False,
                partitions=[partition(0, 1), partition(1, 2), partition(2, -1)],
            ),
            topic(
                error_code=3,
                name="gone",
                topic_id=uuid.UUID(int=0),
                is_internal=False,
                partitions=[],
            ),
        ],
    )
    read = protocol.read_metadata(answer(told, 12))
    assert read.nodes == {1: Node("a", 9), 2: Node("b", 10)}
    assert read.topics == {"orders": (ONE, 0), "gone": (None, 3)}
    assert read.leaders == {Part(ONE, 0): 1, Part(ONE, 1): 2}


def test_a_producer_is_told_who_it_is() -> None:
    told = InitProducerIdResponse(
        throttle_time_ms=0, error_code=14, producer_id=1 << 40, producer_epoch=3
    )
    assert protocol.read_init_producer_id(answer(told, 4)) == (14, 1 << 40, 3)


def test_records_offsets_and_given_up_transactions_are_read() -> None:
    topic = FetchResponse.FetchableTopicResponse
    part = topic.PartitionData
    told = FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[
            topic(
                topic_id=uuid.UUID(bytes=bytes(ONE)),
                partitions=[
                    part(
                        partition_index=2,
                        error_code=0,
                        high_watermark=9,
                        last_stable_offset=8,
                        log_start_offset=1,
                        aborted_transactions=[
                            part.AbortedTransaction(producer_id=5, first_offset=3)
                        ],
                        preferred_read_replica=-1,
                        records=b"some records",
                    ),
                    part(
                        partition_index=3,
                        error_code=1,
                        high_watermark=-1,
                        last_stable_offset=-1,
                        log_start_offset=-1,
                        aborted_transactions=None,
                        preferred_read_replica=-1,
                        records=None,
                    ),
                ],
            )
        ],
    )
    error, (first, second) = protocol.read_fetch(answer(told, 13))
    assert error == 0
    assert first == FetchedPart(Part(ONE, 2), 0, 1, [(5, 3)], memoryview(b"some records"))
    assert (second.part, second.error, bytes(second.records)) == (Part(ONE, 3), 1, b"")


def test_where_batches_landed_and_why_not_is_read() -> None:
    topic = ProduceResponse.TopicProduceResponse
    part = topic.PartitionProduceResponse
    told = ProduceResponse(
        responses=[
            topic(
                name="orders",
                partition_responses=[
                    part(
                        index=0,
                        error_code=0,
                        base_offset=77,
                        log_append_time_ms=-1,
                        log_start_offset=0,
                        record_errors=[],
                        error_message=None,
                    ),
                    part(
                        index=1,
                        error_code=87,
                        base_offset=-1,
                        log_append_time_ms=-1,
                        log_start_offset=-1,
                        record_errors=[
                            part.BatchIndexAndErrorMessage(
                                batch_index=0, batch_index_error_message="no key"
                            )
                        ],
                        error_message="refused",
                    ),
                ],
            )
        ],
        throttle_time_ms=0,
    )
    assert protocol.read_produce(answer(told, 9)) == [
        Produced("orders", 0, 0, 77, ""),
        Produced("orders", 1, 87, -1, "refused; no key"),
    ]


def test_an_answer_that_ends_too_early_is_none() -> None:
    told = bytes(
        InitProducerIdResponse(
            throttle_time_ms=0, error_code=0, producer_id=1, producer_epoch=0
        ).encode(version=4)
    )
    for end in range(len(HEAD) + len(told) - 1):
        with pytest.raises(ValueError, match="ends too early"):
            protocol.read_init_producer_id(memoryview((HEAD + told)[:end]))
