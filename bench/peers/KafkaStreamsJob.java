import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams, exactly-once v2: two threads; with "dedup" a store of the ids that were met.
 *
 * <p>It knows nothing of this library. Ids are never forgotten within a turn, and their changelog is
 * part of the same transaction. The argument is one flat JSON object of strings; the program says
 * "started" and ends when its input is closed.
 */
public final class KafkaStreamsJob {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String STORE = "met";
    private static final int TASKS = 2;
    private static final Duration CLOSING_MAX = Duration.ofSeconds(30);

    private KafkaStreamsJob() {}

    public static void main(String[] arguments) throws Exception {
        JsonNode order = JSON.readTree(arguments[0]);
        StreamsBuilder builder = new StreamsBuilder();
        KStream<byte[], byte[]> rows = builder.stream(order.get("source").asText());
        if (order.get("way").asText().equals("dedup")) {
            rows = rows.processValues(new Fresh());
        }
        rows.mapValues(KafkaStreamsJob::nonce).to(order.get("target").asText());
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings(order))) {
            CountDownLatch running = new CountDownLatch(1);
            streams.setStateListener(
                    (now, before) -> {
                        if (now == KafkaStreams.State.RUNNING) {
                            running.countDown();
                        }
                    });
            streams.start();
            running.await();
            System.out.println("started");
            while (System.in.read() >= 0) {
                // Nobody says anything: the end of the input is what is waited for.
            }
            streams.close(CLOSING_MAX);
        }
    }

    private static Properties settings(JsonNode order) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-" + order.get("target").asText());
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, order.get("kafka").asText());
        settings.put(StreamsConfig.STATE_DIR_CONFIG, order.get("scratch").asText() + "/streams");
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, order.get("commit_ms").asText());
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, TASKS);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, "lz4");
        return settings;
    }

    /** Do the job for one record. */
    private static byte[] nonce(byte[] value) {
        try {
            ObjectNode made = (ObjectNode) JSON.readTree(value);
            made.put("nonce", UUID.randomUUID().toString().replace("-", ""));
            return JSON.writeValueAsBytes(made);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Drops a record whose id was met before. */
    private static final class Fresh implements FixedKeyProcessorSupplier<byte[], byte[], byte[]> {
        @Override
        public FixedKeyProcessor<byte[], byte[], byte[]> get() {
            return new FixedKeyProcessor<>() {
                private FixedKeyProcessorContext<byte[], byte[]> context;
                private KeyValueStore<byte[], byte[]> met;

                @Override
                public void init(FixedKeyProcessorContext<byte[], byte[]> given) {
                    context = given;
                    met = given.getStateStore(STORE);
                }

                @Override
                public void process(FixedKeyRecord<byte[], byte[]> row) {
                    byte[] id = row.headers().lastHeader("id").value();
                    // An empty value would do; a store takes null for "absent" alone.
                    if (met.putIfAbsent(id, new byte[] {1}) == null) {
                        context.forward(row);
                    }
                }
            };
        }

        @Override
        public Set<StoreBuilder<?>> stores() {
            return Set.of(
                    Stores.keyValueStoreBuilder(
                            Stores.persistentKeyValueStore(STORE),
                            Serdes.ByteArray(),
                            Serdes.ByteArray()));
        }
    }
}
