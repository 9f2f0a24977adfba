"""A LangGraph graph with a loop: a planner writes a sum, Python works it out or asks again, a writer answers.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=any python sums_langgraph.py "Ada has 3 coins and …"
"""

import re
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

PLANNER = [
    SystemMessage("Turn the question into one sum. Write the sum and nothing else."),
    HumanMessage("Tom has 4 hats and buys 3 more. How many hats does Tom have now?"),
    AIMessage("4 + 3"),
    HumanMessage("Lea packs 6 boxes with 5 eggs each. How many eggs is that in all?"),
    AIMessage("6 * 5"),
    HumanMessage("Tom has 9 hats and loses 2. How many hats does Tom have left?"),
    AIMessage("9 - 2"),
]
WRITER = [
    HumanMessage("Tom has 4 hats and buys 3 more. How many hats does Tom have now?\nThe calculator says: 7"),
    AIMessage("Tom has 7 hats now."),
    HumanMessage("Lea packs 6 boxes with 5 eggs each. How many eggs is that in all?\nThe calculator says: 30"),
    AIMessage("That is 30 eggs in all."),
]
REMINDER = HumanMessage("That is no sum. Write two numbers with +, - or * between them.")
SUM = re.compile(r"(\d{1,6})\s*([-+*x×])\s*(\d{1,6})")
MOST_TRIES = 2


class State(MessagesState):
    question: str
    tries: int
    result: int | None
    answer: str


def work_out(text):
    """The result of the first sum in a text; None where there is none."""
    if (found := SUM.search(text)) is None:
        return None
    left, right = int(found[1]), int(found[3])
    return {"+": left + right, "-": left - right}.get(found[2], left * right)


def build(**endpoint):
    planner = ChatOpenAI(model="planner", max_tokens=16, **endpoint)
    writer = ChatOpenAI(model="writer", max_tokens=24, **endpoint)

    def plan(state: State):
        tries = state.get("tries", 0)
        asked = HumanMessage(state["question"]) if tries == 0 else REMINDER
        said = planner.invoke([*PLANNER, *state["messages"], asked])
        return {"messages": [asked, AIMessage(said.content)], "tries": tries + 1, "result": work_out(said.content)}

    def is_done(state: State):
        return "write" if state["result"] is not None or state["tries"] == MOST_TRIES else "plan"

    def write(state: State):
        known = "unknown" if state["result"] is None else state["result"]
        asked = HumanMessage(f"{state['question']}\nThe calculator says: {known}")
        return {"answer": writer.invoke([*WRITER, asked]).content}

    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("write", write)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", is_done)
    graph.add_edge("write", END)
    return graph.compile()


def answer(question, **endpoint):
    return build(**endpoint).invoke({"question": question, "messages": []})["answer"]


def solve(task, endpoint):
    return answer(task.prompt, base_url=endpoint.base_url, api_key=endpoint.api_key)


if __name__ == "__main__":
    print(answer(sys.argv[1]))
