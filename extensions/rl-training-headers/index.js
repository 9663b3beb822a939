// An OpenClaw plugin that owns the provider `instar` and says with each of its model calls which
// session and run it belongs to, and whether a person is behind it (main) or not (side). When a
// session is reset it tells the server that the conversation is over.
//
// It changes no request but for its headers, and reads messages only to tell main from side.

import { readSettings } from "./lib/settings.js";
import { kindOfRequest, kindOfRun, runOf } from "./lib/turns.js";

export const PROVIDER = "instar";
const REMEMBERED_RUNS = 1000;
const DONE_TIMEOUT_MS = 5000;
// The conversation goes on after these: only its process or its history was renewed.
const GOES_ON = new Set(["shutdown", "restart", "compaction"]);

export default {
  id: "rl-training-headers",
  name: "RL training headers",
  description: "Tells instar which session, turn and run each model call belongs to.",
  register,
};

export function register(api) {
  const settings = readSettings(api.pluginConfig, api.config?.models?.providers?.[PROVIDER]);
  const runs = new Map();

  const remember = (_event, ctx) => {
    if (!ctx?.runId) return;
    runs.delete(ctx.runId);
    runs.set(ctx.runId, kindOfRun(ctx));
    if (runs.size > REMEMBERED_RUNS) runs.delete(runs.keys().next().value);
  };
  api.on("before_model_resolve", remember);
  api.on("agent_turn_prepare", remember);

  api.registerProvider({
    id: PROVIDER,
    label: "instar",
    auth: [],
    wrapStreamFn: (ctx) => withHeaders(ctx.streamFn, (context, options) => turnHeaders(settings, runs, context, options)),
    wrapSimpleCompletionStreamFn: (ctx) =>
      withHeaders(ctx.streamFn, (_context, options) => headersOf(settings, { kind: "side", options })),
    // The only place that knows the session of a compaction.
    resolveTransportTurnState: (ctx) => ({ headers: sessionHeader(settings, ctx?.sessionId) }),
  });

  if (settings.session_tracking) {
    api.on("session_end", (event, ctx) => {
      const session = event?.sessionId ?? ctx?.sessionId;
      if (!session || GOES_ON.has(event?.reason)) return undefined;
      return tellDone(settings, session, api.logger);
    });
  }
}

function withHeaders(streamFn, headersFor) {
  if (!streamFn) return undefined;
  return (model, context, options) =>
    streamFn(model, context, {
      ...options,
      headers: { ...options?.headers, ...headersFor(context, options) },
    });
}

function turnHeaders(settings, runs, context, options) {
  const { run, compaction } = runOf(options?.requestId);
  const seen = compaction ? "side" : kindOfRequest(context);
  const kind = runs.get(run) === "side" ? "side" : seen;
  return headersOf(settings, { kind, run, options });
}

function headersOf(settings, { kind, run, options }) {
  const headers = {
    [settings.turn_type_header]: kind,
    ...sessionHeader(settings, options?.sessionId),
  };
  if (run) headers[settings.run_header] = run;
  if (settings.training_mode === "off") headers["X-No-Train"] = "1";
  return headers;
}

function sessionHeader(settings, session) {
  return settings.session_tracking && session ? { [settings.session_header]: session } : {};
}

async function tellDone(settings, session, logger) {
  const headers = { [settings.session_header]: session, [settings.done_header]: "1" };
  if (settings.key) headers.Authorization = `Bearer ${settings.key}`;
  try {
    const answer = await fetch(`${settings.endpoint}/session/done`, {
      method: "POST",
      headers,
      signal: AbortSignal.timeout(DONE_TIMEOUT_MS),
    });
    if (!answer.ok) throw new Error(`the answer was ${answer.status}`);
  } catch (error) {
    // A server that is away learns of the end by its own time limit.
    logger?.warn?.(`rl-training-headers: session ${session} was not reported as done: ${error.message}`);
  }
}
