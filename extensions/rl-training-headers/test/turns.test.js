import assert from "node:assert/strict";
import { test } from "node:test";

import { kindOfRequest, kindOfRun, runOf } from "../lib/turns.js";

const user = (text) => ({ role: "user", content: text });
const parts = (text) => ({ role: "user", content: [{ type: "text", text }] });
const CONTEXT = parts("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>");
const AGENT = "<!-- openclaw:attempt:STABLE -->\nYou are a personal assistant";

for (const [name, run, kind] of [
  ["a person's run", { trigger: "user", sessionKey: "agent:main:a" }, "main"],
  ["a run that says nothing", {}, "main"],
  ["a heartbeat", { trigger: "heartbeat" }, "side"],
  ["a memory flush", { trigger: "memory" }, "side"],
  ["a scheduled run", { trigger: "cron" }, "side"],
  ["a sub-agent, which says user", { trigger: "user", sessionKey: "agent:main:subagent:1" }, "side"],
  ["its announcement, which says user", { trigger: "user", inputProvenance: { kind: "inter_session" } }, "side"],
  ["a message from a channel", { trigger: "user", inputProvenance: { kind: "external_user" } }, "main"],
]) {
  test(`by its run: ${name}`, () => assert.equal(kindOfRun(run), kind));
}

for (const [name, systemPrompt, messages, kind] of [
  ["a person's turn", AGENT, [user("[Sun 2026-11-15 00:57 UTC] hi"), CONTEXT], "main"],
  ["a compaction", "You are a context summarization assistant. Your", [parts("<conversation>")], "side"],
  ["a title", "Generate a concise session title (3-6 words", [user("Plan a trip")], "side"],
  ["a memory flush", AGENT, [user("hi"), user("Pre-compaction memory flush. Store")], "side"],
  ["a heartbeat", AGENT, [user("Follow the heartbeat monitor scratch context"), CONTEXT], "side"],
  ["a sub-agent", AGENT, [user("[Sun 2026-11-15 01:05 UTC] [Subagent Context] You"), CONTEXT], "side"],
  ["its announcement", AGENT, [user("hi"), user("[Sun 2026-11-15 01:05 UTC] A background task completed"), CONTEXT], "side"],
  ["a turn after a heartbeat", AGENT, [user("Follow the heartbeat monitor scratch"), user("Thanks")], "main"],
  ["a person who quotes", AGENT, [user("What is a Pre-compaction memory flush?")], "main"],
  ["nothing at all", undefined, undefined, "main"],
]) {
  test(`by the request: ${name}`, () => assert.equal(kindOfRequest({ systemPrompt, messages }), kind));
}

test("a request id names its run", () => {
  assert.deepEqual(runOf("r1:model:2"), { run: "r1", compaction: false });
  assert.deepEqual(runOf("r1:compaction:cmp-1:model:1"), { run: "r1", compaction: true });
  assert.deepEqual(runOf(undefined), { run: undefined, compaction: false });
});
