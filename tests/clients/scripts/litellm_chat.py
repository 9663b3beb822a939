"""A person's turn with litellm: `litellm_chat.py URL HISTORY.json TEXT [SESSION]`."""

import json
import pathlib
import sys

import litellm

url, history, text, *session = sys.argv[1:]
file = pathlib.Path(history)
messages = json.loads(file.read_text()) if file.exists() else []
tool = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
messages.append({"role": "user", "content": text})
while True:
    answer = litellm.completion(
        model="openai/fake",
        api_base=url,
        api_key="local",
        messages=messages,
        tools=[tool],
        extra_headers={"X-Session-Id": session[0]} if session else None,
    )
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for one in message.tool_calls:
        seen = "did-" + json.loads(one.function.arguments)["at"]
        messages.append({"role": "tool", "tool_call_id": one.id, "content": seen})
file.write_text(json.dumps(messages))
print(messages[-1]["content"])
