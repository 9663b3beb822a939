"""A person's turn with the openai SDK: `openai_chat.py URL HISTORY.json TEXT [SESSION]`."""

import json
import pathlib
import sys

from openai import OpenAI

url, history, text, *session = sys.argv[1:]
file = pathlib.Path(history)
messages = json.loads(file.read_text()) if file.exists() else []
tool = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
headers = {"X-Session-Id": session[0]} if session else {}
client = OpenAI(base_url=url, api_key="local", default_headers=headers)
messages.append({"role": "user", "content": text})
while True:
    parts = {"content": "", "calls": {}}
    stream = client.chat.completions.create(
        model="fake", messages=messages, tools=[tool], stream=True
    )
    for chunk in stream:
        delta = chunk.choices[0].delta
        parts["content"] += delta.content or ""
        for call in delta.tool_calls or []:
            parts["calls"][call.index] = call
    calls = [
        {"id": one.id, "type": "function", "function": one.function.model_dump()}
        for one in parts["calls"].values()
    ]
    message = {"role": "assistant", "content": parts["content"] or None}
    messages.append({**message, "tool_calls": calls} if calls else message)
    if not calls:
        break
    for one in calls:
        seen = "did-" + json.loads(one["function"]["arguments"])["at"]
        messages.append({"role": "tool", "tool_call_id": one["id"], "content": seen})
file.write_text(json.dumps(messages))
print(messages[-1]["content"])
