"""A chat template that has a place for tools is used for them; one that has none leaves them to the first message."""

from tiny_models import CHATML, write_tiny_model

from coachrl.pipelines.generation import opening
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.types import Role

WITH_TOOLS = "{% if tools %}<|start|>system\nCall by <tool_call>: {{ tools | tojson }}<|end|>\n{% endif %}" + CHATML
SCHEMA = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}


def test_tools_stand_where_the_template_puts_them(tmp_path):
    tokenizer = ChatTokenizer(write_tiny_model(tmp_path / "tools", template=WITH_TOOLS))
    messages = opening(Role("asker", "asker"), "2 + 3?")
    assert tokenizer.knows_tools
    told = tokenizer.decode(tokenizer.encode_chat(messages, tools=[SCHEMA]))
    assert '"name": "add"' in told and told.index("add") < told.index("2 + 3?")
    assert "add" not in tokenizer.decode(tokenizer.encode_chat(messages))


def test_a_template_without_a_place_for_tools_says_so(tiny_model):
    assert not ChatTokenizer(tiny_model).knows_tools
