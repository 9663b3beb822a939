// The plugin's settings, checked. What is not set has the default that the manifest names.

const DEFAULTS = {
  training_mode: "async",
  session_tracking: true,
  session_header: "X-Session-Id",
  turn_type_header: "X-Turn-Type",
  run_header: "X-Run-Id",
  done_header: "X-Session-Done",
};
const FALLBACK = "http://127.0.0.1:30000/v1";
const HEADER_NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;

// `provider` is OpenClaw's own entry for this provider, if it has one.
export function readSettings(given = {}, provider = {}) {
  const settings = { ...DEFAULTS, ...given };
  if (!["async", "off"].includes(settings.training_mode)) {
    throw new Error(
      `rl-training-headers: training_mode is ${JSON.stringify(settings.training_mode)}; ` +
        "expected async or off",
    );
  }
  for (const name of Object.keys(DEFAULTS).filter((one) => one.endsWith("_header"))) {
    if (!HEADER_NAME.test(settings[name])) {
      throw new Error(
        `rl-training-headers: ${name} is ${JSON.stringify(settings[name])}; ` +
          "expected the name of an HTTP header",
      );
    }
  }
  settings.endpoint = apiBase(given.rollout_endpoint ?? provider.baseUrl ?? FALLBACK);
  settings.key = typeof provider.apiKey === "string" ? provider.apiKey : undefined;
  return settings;
}

// The base of the API, whichever of its addresses was given: http://host:8000/rollout is
// http://host:8000/v1.
export function apiBase(address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    throw new Error(
      `rl-training-headers: rollout_endpoint is ${JSON.stringify(address)}; ` +
        `expected an address such as ${FALLBACK}`,
    );
  }
  const at = `${url.pathname}/`.indexOf("/v1/");
  const path = at < 0 ? "" : url.pathname.slice(0, at);
  return `${url.origin}${path}/v1`;
}
