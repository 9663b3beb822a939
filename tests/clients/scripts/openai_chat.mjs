// A person's turn with the openai SDK: `openai_chat.mjs SDK URL HISTORY.json TEXT [SESSION]`.
import { existsSync, readFileSync, writeFileSync } from "node:fs";

const [sdk, url, history, text, session] = process.argv.slice(2);
const { default: OpenAI } = await import(sdk);
const messages = existsSync(history) ? JSON.parse(readFileSync(history, "utf8")) : [];
const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } }];
const defaultHeaders = session ? { "X-Session-Id": session } : {};
const client = new OpenAI({ baseURL: url, apiKey: "local", defaultHeaders });
messages.push({ role: "user", content: text });
for (;;) {
  const answer = await client.chat.completions.create({ model: "fake", messages, tools });
  const { message } = answer.choices[0];
  messages.push(message);
  if (!message.tool_calls?.length) break;
  for (const call of message.tool_calls) {
    const content = `did-${JSON.parse(call.function.arguments).at}`;
    messages.push({ role: "tool", tool_call_id: call.id, content });
  }
}
writeFileSync(history, JSON.stringify(messages));
console.log(messages.at(-1).content);
