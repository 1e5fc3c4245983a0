"""Ask for an airport's on-time rate: the tool's run shows in the stream, then its number in the sentence."""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
stream = client.chat.completions.create(
    model="smollm2-135m",
    messages=[{"role": "user", "content": "What is the on-time rate of PVG?"}],
    tool_choice={"type": "function", "function": {"name": "on_time_rate"}},
    extra_body={"server_tools": ["on_time_rate"]},  # tools that the server runs
    temperature=0,
    stream=True,
)
for chunk in stream:
    if not chunk.choices:  # what the server's tools do
        call = chunk.event["data"]["call"]
        print(f"[{call['state']} {call['name']} {call.get('result') or call.get('arguments') or ''}]")
    elif chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
print()
