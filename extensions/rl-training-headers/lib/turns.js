// Main or side. Main is what a person asks and gets an answer to; everything that OpenClaw asks
// on its own account is side. Its hooks say why a run was started; a call whose run is unknown
// (a title, or hooks that were not allowed) is known by how it begins.

const SYSTEMS = [/^You are a context summarization assistant\b/, /^Generate a concise session title\b/];
const LAST = [
  /^Pre-compaction memory flush\b/,
  /^Follow the heartbeat monitor scratch\b/,
  /^Read HEARTBEAT\.md if /,
  /^A background task completed\b/,
];
const FIRST = [/^\[Subagent Context\]/];
const TIME = /^\[(?:\w{3} )?\d{4}-\d\d-\d\d[^\]]*\] /;
const CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>";

// What a hook knows of a run. `trigger` alone is not enough: a sub-agent's run, and the run that
// announces its result, say `user`.
export function kindOfRun({ trigger, sessionKey, inputProvenance } = {}) {
  if (trigger && trigger !== "user") return "side";
  if (sessionKey?.includes(":subagent:")) return "side";
  if (inputProvenance?.kind && inputProvenance.kind !== "external_user") return "side";
  return "main";
}

// What the request itself shows: { systemPrompt, messages }, as OpenClaw hands it to a provider.
export function kindOfRequest(context = {}) {
  const system = String(context.systemPrompt ?? "");
  if (SYSTEMS.some((begins) => begins.test(system))) return "side";
  const said = (context.messages ?? [])
    .filter((message) => message.role === "user")
    .map((message) => textOf(message.content).replace(TIME, ""))
    .filter((text) => text && !text.startsWith(CONTEXT));
  const first = said[0] ?? "";
  const last = said.at(-1) ?? "";
  const side = FIRST.some((begins) => begins.test(first)) || LAST.some((begins) => begins.test(last));
  return side ? "side" : "main";
}

// `<run>:model:<n>` while a run talks to the model, `<run>:compaction:<id>...` for summaries.
export function runOf(requestId = "") {
  const [run, purpose] = String(requestId).split(":");
  return { run: run || undefined, compaction: purpose === "compaction" };
}

function textOf(content) {
  if (typeof content === "string") return content.trimStart();
  if (!Array.isArray(content)) return "";
  return content
    .map((part) => part?.text ?? "")
    .join("\n")
    .trimStart();
}
