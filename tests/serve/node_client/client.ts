// A client in another language: it has the .proto file, the types that are made from it, and nothing of ours. Sends
// commands and watches events; where a call or the stream breaks, it sends again with the same id, or goes on behind the
// last position that it has.
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./proto/fleet.js";
import type { GetAgentReply__Output } from "./proto/warehouse/GetAgentReply.js";
import type { SendReply__Output } from "./proto/warehouse/SendReply.js";
import type { WatchReply__Output } from "./proto/warehouse/WatchReply.js";

const [target = "", proto = "", count = "0"] = process.argv.slice(2);
const definition = loadSync(proto, { keepCase: true, longs: Number, oneofs: true, defaults: true });
const loaded = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType;
const fleet = new loaded.warehouse.Fleet(target, grpc.credentials.createInsecure(), {
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 500,
});
const pause = () => new Promise((done) => setTimeout(done, 100));
let broken = 0;

function call<Reply>(ask: (options: grpc.CallOptions, answer: grpc.requestCallback<Reply>) => unknown): Promise<Reply> {
  return new Promise((done, failed) => {
    ask({ deadline: Date.now() + 240_000 }, (error, reply) => (reply ? done(reply) : failed(error)));
  });
}

async function send(agent: string, to: string): Promise<number | string> {
  for (;;) {
    try {
      const request = { agent, command_id: `ts-${to}`, drive: { to } };
      return (await call<SendReply__Output>((options, answer) => fleet.Send(request, options, answer))).position;
    } catch (raised) {
      const error = raised as grpc.ServiceError;
      if (error.code === grpc.status.FAILED_PRECONDITION) return error.details;
      if (error.code !== grpc.status.UNAVAILABLE && error.code !== grpc.status.CANCELLED) throw error;
      broken += 1;
      await pause();
    }
  }
}

const heard: (string | undefined)[] = [];
let last = "";
function watch(ready: (_: void) => void): void {
  const stream = fleet.Watch({ types: ["Driven"], after: last });
  stream.on("data", (reply: WatchReply__Output) => {
    last = reply.after;
    ready();
    if (reply.agent) {
      heard.push(reply.driven?.to);
      console.log(heard.length);
    }
  });
  stream.on("error", () => {
    broken += 1;
    void pause().then(() => watch(ready));
  });
}

await new Promise<void>(watch);
const refused = await send("Cart/c01", "moon");
const positions: (number | string)[] = [];
for (let number = 0; number < Number(count); number += 1) positions.push(await send("Cart/c01", `${number}`));
const again = await send("Cart/c01", "0");
while (heard.length < Number(count)) await pause();
const asked = { agent: "Cart/c01" };
const { cart } = await call<GetAgentReply__Output>((options, answer) => fleet.GetAgent(asked, options, answer));
console.log(JSON.stringify({ heard, refused, positions, again, drives: cart?.drives, at: cart?.at, broken }));
process.exit(0);
