// A client in another language: it has the .proto file and nothing of ours. Sends commands and watches events; where a
// call or the stream breaks, it sends again with the same id, or goes on behind the last position that it has.
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const [target, proto, count] = process.argv.slice(2);
const loaded = grpc.loadPackageDefinition(loadSync(proto, { keepCase: true, longs: Number, oneofs: true }));
const fleet = new loaded.warehouse.Fleet(target, grpc.credentials.createInsecure(), {
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 500,
});
const pause = () => new Promise((done) => setTimeout(done, 100));
let broken = 0;

function call(method, request) {
  const deadline = Date.now() + 240_000;
  return new Promise((done, failed) => {
    fleet[method](request, { deadline }, (error, reply) => (error ? failed(error) : done(reply)));
  });
}

async function send(agent, to) {
  for (;;) {
    try {
      return (await call("Send", { agent, command_id: `js-${to}`, drive: { to } })).position;
    } catch (error) {
      if (error.code === grpc.status.FAILED_PRECONDITION) return error.details;
      if (error.code !== grpc.status.UNAVAILABLE && error.code !== grpc.status.CANCELLED) throw error;
      broken += 1;
      await pause();
    }
  }
}

const heard = [];
let last = "";
function watch(ready) {
  const stream = fleet.Watch({ types: ["Driven"], after: last });
  stream.on("data", (reply) => {
    last = reply.after;
    ready();
    if (reply.agent) {
      heard.push(reply.driven.to);
      console.log(heard.length);
    }
  });
  stream.on("error", () => {
    broken += 1;
    pause().then(() => watch(ready));
  });
}

await new Promise(watch);
const refused = await send("Cart/c01", "moon");
const positions = [];
for (let number = 0; number < Number(count); number += 1) positions.push(await send("Cart/c01", `${number}`));
const again = await send("Cart/c01", "0");
while (heard.length < Number(count)) await pause();
const { cart } = await call("GetAgent", { agent: "Cart/c01" });
console.log(JSON.stringify({ heard, refused, positions, again, drives: cart.drives, at: cart.at, broken }));
process.exit(0);
