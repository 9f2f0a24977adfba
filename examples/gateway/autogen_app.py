"""AutoGen: two assistants take turns in a group chat."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

CAN = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False, "family": "unknown"}


async def solve(task, endpoint):
    def model(name):
        where = {"base_url": endpoint.base_url, "api_key": endpoint.api_key}
        return OpenAIChatCompletionClient(model=name, model_info=CAN, max_tokens=16, **where)

    writer = AssistantAgent("writer", model_client=model("writer"), system_message="Write only the expression.")
    critic = AssistantAgent("critic", model_client=model("critic"), system_message="Say what it comes to.")
    team = RoundRobinGroupChat([writer, critic], termination_condition=MaxMessageTermination(3))
    done = await team.run(task=task.prompt)
    return done.messages[-1].content
