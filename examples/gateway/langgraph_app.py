"""A LangGraph graph of two agents, as its documentation writes one."""

from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph


class State(TypedDict, total=False):
    problem: str
    plan: str
    answer: str


def solve(task, endpoint):
    def model(name):
        return ChatOpenAI(model=name, base_url=endpoint.base_url, api_key=endpoint.api_key, max_tokens=16)

    planner, solver = model("planner"), model("solver")

    def plan(state: State) -> State:
        return {"plan": planner.invoke([("system", "Write only the expression."), ("user", state["problem"])]).content}

    def answer(state: State) -> State:
        return {"answer": solver.invoke(f"{state['problem']}\n{state['plan']} = ? Answer with a number.").content}

    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("answer", answer)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "answer")
    graph.add_edge("answer", END)
    return graph.compile().invoke({"problem": task.prompt})["answer"]
