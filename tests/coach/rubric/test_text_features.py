import tracemalloc
from fractions import Fraction

import pytest
from coach_requests import make_action, request_for
from hypothesis import given
from hypothesis import strategies as st

from coachrl.coach.replies import json_objects
from coachrl.coach.rubric.math import answer_rules, argument_rules
from coachrl.coach.rubric.text_features import (
    after_last_box,
    answer_of,
    computes,
    estimators_in,
    evaluate,
    expressions_in,
    first_wrong_equation,
    last_number,
    numbers_given,
    numbers_in,
    same_number,
    stated_result,
)
from coachrl.tasks.math.problems import boxed_spans, final_answer, last_box


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3 * 4", 12),
        ("(1 + 2) / 4", Fraction(3, 4)),
        ("2 ** 10 - 1", 1023),
        ("-7 // 2", -4),
        ("0.1 + 0.2", Fraction(3, 10)),
        ("1 / 0", None),
        ("9 ** 9 ** 9", None),
        ("10 ** 100", None),
        ("True + 1", None),
        ("x + 1", None),
        ("__import__('os').getcwd()", None),
        ("1" * 300, None),
        ("(" * 150 + "1", None),
        ("2 ** 64", 2**64),
        ("2 ** 65", None),
        ("2 ** -64", Fraction(1, 2**64)),
        ("2 ** -65", None),
        ("4 ** 0.5", None),
        ("1000000000 ** 2", 10**18),
        ("1000000001 ** 2", None),
        ("(1 / 1000000001) ** 2", None),
        ("1+" * 99 + "10", 109),
        ("1+" * 99 + "100", None),
        (" 7 % 4 ", 3),
        ("+3", 3),
        ("1e3", 1000),
        ("'a'", None),
        ("7 & 3", None),
        ("~7", None),
    ],
)
def test_arithmetic_that_takes_no_time_is_worked_out_and_nothing_else(text: str, value: Fraction | int | None) -> None:
    assert evaluate(text) == value


@given(st.text(alphabet="0123456789+-*/%(). x", max_size=60))
def test_evaluate_never_raises(text: str) -> None:
    assert evaluate(text) is None or isinstance(evaluate(text), Fraction)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("She has 3 * 4 = 12 apples", ("3 * 4",)),
        (r"$3 \times 4$ and then 12 ÷ 5", ("3 * 4", "12 / 5")),
        ("3 x 4", ("3*4",)),
        ("1,200 + 34", ("1200 + 34",)),
        ("no sums, only 12", ()),
        ("1. 3 + 4\n2) 5 - 1. Done.", ("3 + 4", "5 - 1")),
        (r"\frac{1}{2} + 1", ("(1)/(2) + 1",)),
    ],
)
def test_expressions(text: str, found: tuple[str, ...]) -> None:
    assert tuple(e.replace(" ", "") for e in expressions_in(text)) == tuple(e.replace(" ", "") for e in found)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"thus 5, \boxed{12}", 12),
        (r"\boxed{\frac{1}{2}}", Fraction(1, 2)),
        ("first 2 + 2\n3 * 4", 12),
        ("3 * 4 = 13", 12),
        ("the answer is 7.", 7),
        ("nothing", None),
        ("", None),
        (r"\boxed{3 * 4}, since 3 + 1", 12),
        (r"\boxed{12}" + "\n7 * 2", 12),
        (r"\boxed{11} no, \boxed{12}", 12),
        ("3 * 4\n7 * 2", 14),
        ("7 * 2\nSo 3.", 3),
        ("\\boxed{1 + 1\n2 + 3}", 5),
        ("2 + 2, then 3 + 3", 6),
    ],
)
def test_an_answer_is_the_last_box_and_else_the_last_line(text: str, value: Fraction | int | None) -> None:
    assert answer_of(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Think of 7.\n3 * 4", 12),
        (r"\boxed{5}", 5),
        ("3 * 4 is a start.\nI am not sure about 9.", None),
        ("", None),
        (r"\boxed{none}", None),
    ],
)
def test_stated_result(text: str, value: int | None) -> None:
    assert stated_result(text) == value
    assert stated_result(f"{text}\n\n") == value


def test_numbers_are_given_in_digits_and_in_words() -> None:
    assert numbers_given("Two of 4 boxes hold twenty-five figs each.") == {2, 4, 5, 20, 25}


@pytest.mark.parametrize(
    ("code", "does"),
    [
        ("print(12)", False),
        ("x = 12\nprint(x)", False),
        ("print(3 * 4)", True),
        ("print(sum([1, 2]))", True),
        ("1 +", False),
        *((code, True) for code in ("x += 1", "x = a > b", "for i in x: pass", "while x: pass", "f.print(1)")),
    ],
)
def test_operators_a_loop_a_comparison_and_a_call_are_computing(code: str, does: bool) -> None:
    assert computes(code) is does


@pytest.mark.parametrize(
    "text", ["-" * 50_000, "(" * 50_000, "\n" * 50_000, "\\boxed{" * 10_000], ids=["-", "(", "lines", "box"]
)
def test_what_a_model_repeats_without_end_takes_no_time(text):
    assert expressions_in(text) == () and last_box(text) is None
    assert list(json_objects(text)) == []


def test_boxes_that_stand_in_each_other_take_no_more_memory_than_others():
    text = "\\boxed{" * 5_000 + "7" + "}" * 5_000
    tracemalloc.start()
    try:
        assert final_answer(text) == text[len("\\boxed{") : -1] and answer_of(text) == stated_result(text) == 7
        argument_rules(request_for(make_action("solver", text)))
        answer_rules(request_for(make_action("verifier", text)))
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["9" * 5_000, "-" + "9" * 5_000, "0." + "9" * 5_000, "1" + ",000" * 2_000])
def test_digits_without_end_are_no_number(text):
    assert numbers_in(f"{text} and 7") == (*numbers_in(text), 7)
    assert last_number(f"7 and {text}") == 7 and same_number(answer_of(f"\\boxed{{{text}}}"), None) is False


def test_whole_numbers_are_the_same_where_they_are_equal() -> None:
    assert not same_number(Fraction(10**6 + 1), Fraction(10**6)) and not same_number(Fraction(1), Fraction(0))
    assert same_number(Fraction(10**12), Fraction(10**12))
    assert same_number(Fraction(7), None) is same_number(None, Fraction(7)) is same_number(None, None) is False


def test_floats_are_the_same_but_for_rounding() -> None:
    assert same_number(Fraction(1, 10**6), Fraction(0)) and not same_number(Fraction(2, 10**6), Fraction(0))
    assert same_number(last_number(str(0.1 + 0.2)), Fraction(3, 10))
    assert same_number(last_number(str(0.1 * 3 * 1e12)), Fraction(3 * 10**11))


@pytest.mark.parametrize("share", [Fraction(a, b) for b in (3, 6, 7, 60, 97, 365, 9999) for a in (1, b // 2, b + 1)])
def test_a_fraction_is_what_python_prints_of_it_in_six_digits(share: Fraction) -> None:
    assert same_number(last_number(f"{float(share):f}"), share) and same_number(share, last_number(f"{float(share):f}"))
    assert not same_number(last_number(f"{float(share) + 3e-6:f}"), share)


@pytest.mark.parametrize(
    ("text", "numbers", "last"),
    [
        ("1,200.50 and 1,20", (Fraction(2401, 2), 1, 20), 20),
        ("5kg or 7", (7,), 7),
        ("9 - 5kg", (9,), 5),
        ("(-3)", (3,), -3),
        ("2-7", (2, 7), 7),
        ("x = -0.5.", (Fraction(1, 2),), Fraction(-1, 2)),
        ("Ann had 1,200 apples and 3.5 pears, x2 and v1.2.", (1200, Fraction(7, 2)), Fraction(7, 2)),
        ("none", (), None),
        ("9" * 1000, (int("9" * 1000),), int("9" * 1000)),
        ("9" * 1001, (), None),
    ],
)
def test_what_is_a_number_and_which_is_the_last(text: str, numbers: tuple[int, ...], last: int | None) -> None:
    assert (numbers_in(text), last_number(text)) == (numbers, last)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("16 / 8 = 3", "16 / 8 = 3"),
        ("So 16 / 8 = 2.0 and 3 * 4 = 12.", ""),
        ("10 / 3 = 3.33\n10 / 3 = 3.34", ""),  # rounded to the digits that are stated, either way
        ("10 / 3 = 3.35", "10 / 3 = 3.35"),
        ("10 / 4 = 3", ""),
        ("10 / 4 = 4", "10 / 4 = 4"),
        ("3 * 4 = 6 * 2 = 13", "6 * 2 = 13"),
        ("3 * 4 = 6 * 3", ""),  # no number is stated
        ("3 + 4, and 16 / 8 = 3", "16 / 8 = 3"),
        ("3 * 4 apples = 13", ""),
        ("$3 * 4 = 13$ apples", "3 * 4 = 13"),
        ("3 * 4 = 1,200 apples", "3 * 4 = 1,200"),
        ("600 * 2 = 1,200 apples", ""),
        ("3 - 4 = -1; 3 - 4 = 1", "3 - 4 = 1"),
        ("x = 3 * 4\n2 + 2 = 5\n2 + 2 = 6", "2 + 2 = 5"),
        ("1 + 1 = 2\n" * 199 + "2 + 2 = 5", "2 + 2 = 5"),
        ("1 + 1 = 2\n" * 200 + "2 + 2 = 5", ""),
        (f"1 + 1 = {'9' * 1001}", f"1 + 1 = {'9' * 72}"),
    ],
)
def test_the_first_equation_whose_sides_differ_is_found(text: str, wrong: str) -> None:
    assert first_wrong_equation(text) == wrong


def contents_of(text: str) -> list[str]:
    return [text[begin:end] for begin, end in boxed_spans(text)]


def test_boxes_stand_in_the_order_in_which_they_end() -> None:
    assert contents_of(r"\boxed{a \boxed{b}} \boxed {d}") == ["b", r"a \boxed{b}", "d"]
    assert after_last_box(r"\boxed{a} x \boxed{b} y") == " y" and after_last_box("no box") == "no box"
    assert contents_of(r"} \boxed{a} \fbox{b}") == ["a"]
    assert contents_of(r"\boxed{\frac{1}{2}} or \boxed{3") == [r"\frac{1}{2}"]
    assert after_last_box(r"so \boxed{\frac{1}{2}} it is") == " it is"


@pytest.mark.parametrize("answer", [r"f = \left\{ 1 \right.", r"\{1, 2\}", r"\}", r"\boxed{2} - 1"])
def test_the_rules_read_the_answer_that_is_graded(answer: str) -> None:
    """A brace that is escaped is a set's or a case's, and not the box's."""
    text = f"so \\boxed{{{answer}}}."
    assert last_box(text) == final_answer(text) == answer and after_last_box(text) == "."


def test_estimators_are_told_by_the_names_that_their_libraries_give_them() -> None:
    found = estimators_in(
        "a = XGBClassifier(\nRidge(1); m.LinearSVC (); KFold(3); SVR; GaussianNB(), LassoCV(), Ridge()"
    )
    assert found == {
        "classification": ("XGBClassifier", "LinearSVC", "GaussianNB"),
        "regression": ("Ridge", "LassoCV", "Ridge"),
    }
