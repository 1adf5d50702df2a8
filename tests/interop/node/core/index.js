// OURS, not BabelQueue's: the few names @babelqueue/kafka imports from a core that the registry in
// reach does not have. Node's own JSON writes and reads the envelope; the transport beside it is theirs.
import { randomUUID } from "node:crypto";

export class BabelQueueError extends Error {}

export class UnknownUrnError extends BabelQueueError {}

export const UnknownUrnStrategy = { FAIL: "fail", DELETE: "delete", RELEASE: "release", DEAD_LETTER: "dead_letter" };

export const EnvelopeCodec = {
  make: (job, data, { queue, traceId }) => ({
    job,
    trace_id: traceId ?? randomUUID(),
    data,
    meta: { id: randomUUID(), queue, lang: "node", schema_version: 1, created_at: Date.now() },
    attempts: 0,
  }),
  encode: (envelope) => JSON.stringify(envelope),
  decode: (text) => JSON.parse(text),
  urn: (envelope) => envelope.job ?? envelope.urn ?? "",
  accepts: (envelope) => Boolean(envelope?.job) && envelope.meta?.schema_version === 1,
};

export function annotate(envelope, reason, queue, { attempts, error, exception }) {
  const dead_letter = {
    reason, error, exception, failed_at: Date.now(), original_queue: queue, attempts, lang: "node",
  };
  return { ...envelope, dead_letter };
}
