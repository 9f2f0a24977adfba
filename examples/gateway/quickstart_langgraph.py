"""The quickstart's team (configs/quickstart.yaml) as a LangGraph graph: draft, program, answer, in the same words."""

import operator
import re
from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

SAM = "Sam has 2 cups and gets 5 more. How many cups does Sam have now?"
ZOE = "Zoe packs 3 crates with 6 cups each. How many cups is that in all?"


class State(TypedDict, total=False):
    problem: str
    draft: str
    output: str
    answer: str


def shots(sam, five, zoe, eighteen):
    return [("user", sam), ("assistant", five), ("user", zoe), ("assistant", eighteen)]


DRAFT = shots(f"Write only the expression.\n{SAM}", "2 + 5", f"Write only the expression.\n{ZOE}", "3 * 6")
ADD, MULTIPLY = "```python\nprint(2 + 5)\n```", "```python\nprint(3 * 6)\n```"
CODE = shots(f"{SAM}\nDraft: 2 + 5", ADD, f"{ZOE}\nDraft: 3 * 6", MULTIPLY)
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv}
SEVEN, EIGHTEEN = r"The answer is \boxed{7}", r"The answer is \boxed{18}"
FINAL = shots(f"{SAM}\nCode output: 7", SEVEN, f"{ZOE}\nCode output: 18", EIGHTEEN)


def run(reply):
    """What the reply's program prints, where it prints one sum or product. Nothing that a model wrote is executed."""
    program = re.search(r"```python\n\s*print\((-?\d{1,9}) *([-+*]|//) *(-?\d{1,9})\)\s*```", reply)
    if program is None or (program[2] == "//" and not int(program[3])):
        return "(no output)"
    left, sign, right = program.groups()
    return str(OPERATORS[sign](int(left), int(right)))


def solve(task, endpoint):
    def ask(role, talk, text):
        model = ChatOpenAI(model=role, base_url=endpoint.base_url, api_key=endpoint.api_key)
        return model.invoke([*talk, ("user", text)]).content.strip()

    def draft(state: State) -> State:
        return {"draft": ask("problem_solver", DRAFT, f"Write only the expression.\n{state['problem']}") or "(nothing)"}

    def compute(state: State) -> State:
        return {"output": run(ask("code_executor", CODE, f"{state['problem']}\nDraft: {state['draft']}"))}

    def answer(state: State) -> State:
        return {"answer": ask("verifier", FINAL, f"{state['problem']}\nCode output: {state['output']}")}

    graph = StateGraph(State)
    for name, node in (("draft_it", draft), ("compute", compute), ("answer_it", answer)):
        graph.add_node(name, node)
    for first, second in ((START, "draft_it"), ("draft_it", "compute"), ("compute", "answer_it"), ("answer_it", END)):
        graph.add_edge(first, second)
    return graph.compile().invoke({"problem": task.prompt})["answer"]
