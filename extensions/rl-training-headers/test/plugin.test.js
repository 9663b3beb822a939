import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import plugin, { PROVIDER } from "../index.js";
import { apiBase, readSettings } from "../lib/settings.js";

// What OpenClaw gives a plugin, as far as this one uses it.
function host(pluginConfig, provider) {
  const hooks = {};
  const warnings = [];
  let registered;
  plugin.register({
    pluginConfig,
    config: { models: { providers: { [PROVIDER]: provider } } },
    logger: { warn: (line) => warnings.push(line) },
    on: (name, handler) => (hooks[name] = handler),
    registerProvider: (one) => (registered = one),
  });
  const call = (wrap, context, options) => {
    let sent;
    registered[wrap]({ streamFn: (_model, _context, given) => (sent = given) })({}, context, options);
    return sent.headers;
  };
  return { hooks, warnings, provider: registered, call };
}

async function server(handler) {
  const seen = [];
  const http = createServer((request, response) => {
    seen.push({ url: request.url, method: request.method, headers: request.headers });
    handler(response);
  });
  await new Promise((done) => http.listen(0, "127.0.0.1", done));
  const close = () => new Promise((done) => http.close(done));
  return { seen, address: `http://127.0.0.1:${http.address().port}/v1`, close };
}

const ASK = { systemPrompt: "You are kind", messages: [{ role: "user", content: "hi" }] };
const OPTIONS = { requestId: "r1:model:1", sessionId: "s1", headers: { "X-User-Id": "ada" } };

test("a person's turn carries session, kind and run, and keeps other headers", () => {
  const { call, hooks } = host();
  hooks.before_model_resolve({}, { runId: "r1", trigger: "user", sessionKey: "agent:main:a" });
  assert.deepEqual(call("wrapStreamFn", ASK, OPTIONS), {
    "X-User-Id": "ada",
    "X-Session-Id": "s1",
    "X-Turn-Type": "main",
    "X-Run-Id": "r1",
  });
});

test("a run that a hook called side is side, whatever it asks", () => {
  const { call, hooks } = host();
  hooks.agent_turn_prepare({}, { runId: "r1", trigger: "heartbeat" });
  assert.equal(call("wrapStreamFn", ASK, OPTIONS)["X-Turn-Type"], "side");
});

test("a compaction is side and has the session that only the transport knows", () => {
  const { call, provider } = host();
  const headers = call("wrapStreamFn", ASK, { requestId: "r1:compaction:c1:model:1" });
  assert.deepEqual(headers, { "X-Turn-Type": "side", "X-Run-Id": "r1" });
  const state = provider.resolveTransportTurnState({ sessionId: "s1" });
  assert.deepEqual(state, { headers: { "X-Session-Id": "s1" } });
});

test("a simple completion, such as a title, is side", () => {
  const { call } = host();
  assert.deepEqual(call("wrapSimpleCompletionStreamFn", ASK, {}), { "X-Turn-Type": "side" });
});

test("without a stream there is nothing to wrap", () => {
  assert.equal(host().provider.wrapStreamFn({}), undefined);
});

test("header names, tracking and training can be set", () => {
  const { call, hooks } = host({
    training_mode: "off",
    session_tracking: false,
    turn_type_header: "X-Kind",
  });
  assert.deepEqual(call("wrapStreamFn", ASK, { requestId: "r1:model:1", sessionId: "s1" }), {
    "X-Kind": "main",
    "X-Run-Id": "r1",
    "X-No-Train": "1",
  });
  assert.equal(hooks.session_end, undefined);
});

test("only so many runs are remembered, the newest", () => {
  const { call, hooks } = host();
  for (let n = 0; n <= 1000; n += 1) hooks.before_model_resolve({}, { runId: `r${n}`, trigger: "cron" });
  const kind = (run) => call("wrapStreamFn", ASK, { requestId: `${run}:model:1` })["X-Turn-Type"];
  assert.deepEqual([kind("r0"), kind("r1"), kind("r1000")], ["main", "side", "side"]);
});

test("a reset is reported once, with the provider's key; what goes on is not", async () => {
  const { seen, address, close } = await server((response) => response.end("{}"));
  const { hooks, warnings } = host({}, { baseUrl: address, apiKey: "sk-1" });
  for (const reason of ["shutdown", "restart", "compaction"]) {
    await hooks.session_end({ sessionId: "s1", reason }, {});
  }
  await hooks.session_end({ sessionId: "s1", reason: "reset" }, {});
  await hooks.session_end({ reason: "new" }, { sessionId: "s2" });
  await hooks.session_end({ reason: "new" }, {});
  await close();
  assert.deepEqual(
    seen.map(({ url, method, headers }) => [method, url, headers["x-session-id"], headers["x-session-done"], headers.authorization]),
    [
      ["POST", "/v1/session/done", "s1", "1", "Bearer sk-1"],
      ["POST", "/v1/session/done", "s2", "1", "Bearer sk-1"],
    ],
  );
  assert.deepEqual(warnings, []);
});

test("a server that refuses or is away is a warning, not an error", async () => {
  const { address, close } = await server((response) => {
    response.statusCode = 401;
    response.end();
  });
  const first = host({ rollout_endpoint: address });
  await first.hooks.session_end({ sessionId: "s1", reason: "reset" }, {});
  await close();
  await first.hooks.session_end({ sessionId: "s1", reason: "reset" }, {});
  assert.equal(first.warnings.length, 2);
  assert.match(first.warnings[0], /401/);
});

for (const [given, base] of [
  ["http://localhost:8000/rollout", "http://localhost:8000/v1"],
  ["http://127.0.0.1:30000", "http://127.0.0.1:30000/v1"],
  ["http://127.0.0.1:30000/v1/", "http://127.0.0.1:30000/v1"],
  ["https://x.example/instar/v1/chat/completions", "https://x.example/instar/v1"],
]) {
  test(`the API of ${given}`, () => assert.equal(apiBase(given), base));
}

test("settings that cannot be are named", () => {
  assert.throws(() => readSettings({ training_mode: "sync" }), /training_mode is "sync"/);
  assert.throws(() => readSettings({ rollout_endpoint: "nowhere" }), /rollout_endpoint is "nowhere"/);
  assert.throws(() => readSettings({ run_header: "X Run" }), /run_header is "X Run"/);
  assert.equal(readSettings().endpoint, "http://127.0.0.1:30000/v1");
});
