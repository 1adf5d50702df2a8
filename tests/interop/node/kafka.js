// A Node service on @babelqueue/kafka: `node kafka.js host:port topic send` takes {urn, data, traceId,
// headers} by lines; `node kafka.js host:port topic work group count` prints what it handled, and so
// does `refuse`, but fails it all, so that it becomes dead letters.
import { createInterface } from "node:readline";
import { KafkaConsumer, KafkaPublisher, RetryTopics } from "@babelqueue/kafka";
import { Kafka, logLevel } from "kafkajs";

const [brokers, topic, verb, group, count] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "interop", brokers: [brokers], logLevel: logLevel.ERROR });
const producer = kafka.producer();
await producer.connect();

async function send() {
  const publisher = KafkaPublisher.create(producer, topic);
  for await (const line of createInterface({ input: process.stdin })) {
    const { urn, data, traceId, headers } = JSON.parse(line);
    console.log(await publisher.publish(urn, data, { traceId, headers }));
  }
}

async function work() {
  const consumer = kafka.consumer({ groupId: group });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let left = Number(count);
  await new Promise((done, failed) => {
    const handle = async (envelope, message, headers) => {
      const body = message.value.toString("base64");
      console.log(JSON.stringify({ body, envelope, headers, timestamp: message.timestamp }));
      if (verb === "refuse") throw new Error("asked to fail");
    };
    const babel = new KafkaConsumer(
      consumer,
      { "urn:babel:orders:created": handle },
      { producer, maxTries: 1, retryTopics: new RetryTopics(topic, []), unknownUrn: "dead_letter" },
    );
    const settled = async (payload) => {
      await babel.handle(payload).catch(failed);
      if (--left === 0) done();
    };
    consumer.run({ autoCommit: false, eachMessage: settled }).catch(failed);
  });
  await consumer.disconnect();
}

await (verb === "send" ? send() : work());
await producer.disconnect();
