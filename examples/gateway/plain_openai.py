"""Two models with nothing but the `openai` client: one writes an expression, the other says what it comes to."""

EXAMPLE = [
    {"role": "user", "content": "Sam has 2 cups and gets 5 more. How many cups does Sam have now?"},
    {"role": "assistant", "content": "2 + 5"},
]


def solve(task, endpoint):
    client = endpoint.openai()
    talk = [*EXAMPLE, {"role": "user", "content": task.prompt}]
    planned = client.chat.completions.create(model="planner", messages=talk, max_tokens=16)
    plan = planned.choices[0].message.content
    asked = [{"role": "user", "content": f"{task.prompt}\n{plan} = ? Answer with a number."}]
    return client.chat.completions.create(model="solver", messages=asked, max_tokens=16).choices[0].message.content
