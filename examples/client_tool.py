"""A tool that the client runs: plain OpenAI `tools`; the arguments arrive while they are decoded."""

import json

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
function = {"name": "get_weather", "description": "Get the weather of a city.", "parameters": parameters}
stream = client.chat.completions.create(
    model="smollm2-135m",
    messages=[{"role": "user", "content": "What is the weather in Paris?"}],
    tools=[{"type": "function", "function": function}],
    tool_choice="required",
    parallel_tool_calls=False,
    temperature=0,
    stream=True,
)
arguments = ""
for chunk in stream:
    for call in chunk.choices[0].delta.tool_calls or []:
        if call.function.name:
            print("call:", call.function.name)
        arguments += call.function.arguments or ""
print("arguments:", json.loads(arguments))
