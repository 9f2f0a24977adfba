"""The OpenAI Agents SDK: a triage agent hands over to a solver, who has a tool."""

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
)


@function_tool
def multiply(first: int, second: int) -> int:
    """The product of two whole numbers."""
    return first * second


async def solve(task, endpoint):
    client = endpoint.async_openai()

    def model(name):
        return OpenAIChatCompletionsModel(model=name, openai_client=client)

    solver = Agent(name="solver", instructions="Solve it.", model=model("solver"), tools=[multiply])
    triage = Agent(name="triage", instructions="Hand over.", model=model("triage"), handoffs=[solver])
    try:
        done = await Runner.run(triage, task.prompt, max_turns=4, run_config=RunConfig(tracing_disabled=True))
    except (MaxTurnsExceeded, ModelBehaviorError) as error:  # agents that talk in circles have no answer
        return str(error)
    return done.final_output
