"""Answers in the forms that language models write, right ones and those that look alike."""

import pytest

from coachrl.tasks.math.problems import MathTruth, grade_math

RIGHT = [
    *(
        (values, rf"\boxed{{{said}}}")
        for values in ("-8,2", r"\{2,-8\}", r"x=-8 \text{ or } x=2", "x=-8, x=2")
        for said in (
            "x=-8,x=2",
            r"x=2\text{ or }x=-8",
            r"x=-8\quad\text{or}\quad x=2",
            "x = -8 or x = 2",
            r"x=-8\lor x=2",
        )
    ),
    *(("-8,2", rf"\boxed{{{said}}}") for said in (r"-8\,\text{and}\,2", "-8 and 2", "x_1=-8, x_2=2")),
    *(("(3,4)", rf"\boxed{{{said}}}") for said in ("x=3, y=4", r"x=3\text{ and }y=4", r"a=3,\ b=\frac{8}{2}")),
    *(
        (r"\frac{3}{5}", rf"\boxed{{{name}=\frac{{3}}{{5}}}}")
        for name in (r"\frac{AB}{CD}", r"\frac{dy}{dx}", r"\frac{[ABC]}{S}")
    ),
    *(
        (right, rf"\boxed{{{name}={right}}}")
        for right in (r"\frac{3}{5}", "12")
        for name in (
            r"P(A\mid B)",
            r"\Pr\left(X \geq 2\right)",
            r"\mathbb{P}(X=1)",
            r"\max f",
            r"y_{\max}",
            r"\operatorname{Var}(X)",
            r"\bar x",
        )
    ),
    *((r"\frac{3}{5}", rf"\boxed{{{said}}}") for said in (r"60\,\%", r"60\text{ percent}", "60%")),
    *((r"7.3\times 10^{9}", rf"\boxed{{{said}}}") for said in ("7.3e9", "7.3E+09", r"73 \cdot 10^8")),
    *(("2.5", rf"\boxed{{{said}}}") for said in ("2 1/2", r"2\,1/2", r"2~\frac{1}{2}", r"\text{2 1/2}", r"\approx2.5")),
    *((r"\frac{8}{3}", rf"\boxed{{{said}}}") for said in ("2 2/3", r"2\frac{2}{3}", r"2\ 2/3")),
    *(
        ("6488.5", rf"\boxed{{{said}}}")
        for said in (
            r"\text{6488.5}",
            r"\mathbf{6,488.5}",
            r"\text{\$6,488.50}",
            r"\text{6,488.5 cm}",
            r"US\$6488.5",
            r"6\;488.5",
        )
    ),
    *(
        ("7", rf"\boxed{{{said}}}")
        for said in (r"\textbf{(C)}\ 7", r"\text{(B) }7", "(D) 7", "Answer: 7", r"\text{about }7")
    ),
    *(
        (letter, rf"\boxed{{{said}}}")
        for letter in ("B", "(B)", r"\text{B}", r"\textbf{(B)}")
        for said in (
            "B.",
            "B)",
            "(B)",
            "B. 5",
            r"\textbf{(B)}\ 5",
            r"\text{B) 5 cm}",
            "**B**",
            r"\text{Option B}",
            r"\textbf{B.}",
        )
    ),
    *(
        ("5+8i", rf"\boxed{{{said}}}")
        for said in (r"5+8\,i", r"5+8\mathrm{i}", r"8 \cdot i+5", "z=5+8i", "5+i8", r"5+i\cdot8", r"8\text{i}+5")
    ),
    *(("1<x<2", rf"\boxed{{{said}}}") for said in ("(1,2)", r"\left(1,2\right)", r"x\in(1,2)", "1 < x < 2")),
    *((r"x \geq 2", rf"\boxed{{{said}}}") for said in (r"[2,\infty)", "x≥2", r"2\le x", r"x\geqslant 2")),
    *((r"[2,\infty)", r"\boxed{[2,∞)}"), (r"\emptyset", r"\boxed{\varnothing}"), (r"2\sqrt{5}", r"\boxed{2√5}")),
    *(
        ("7", reply)
        for reply in (r"So $$\\boxed{7}$$.", r"x = 3 \\ \boxed{7}", r"x = 3\\\boxed{7}", r"\boxed{8} \\boxed{7}")
    ),
    *((right, r"\boxed{2+3e}") for right in ("3e+2", "1-e+4e+1")),
    (r"\frac{2e-1}{3}", r"\boxed{(2e-1)/3}"),
    *(("E. coli", r"\boxed{E. coli}"), ("AB", r"\boxed{(A)(B)}")),
    *(("12", rf"\boxed{{{name}=12}}") for name in (r"\int_0^1 f(x)\,dx", "(a+b)^2", "f(g(2))", r"\binom{n}{2}")),
    *((r"(2,5]", r"\boxed{\left(2, 5\right].}"), (r"\text{Yes}", r"\boxed{Yes.}"), ("7 or 8", r"\boxed{8 or 7}")),
]
WRONG = [
    *(
        ("7", rf"\boxed{{7{said}}}")
        for said in (r"\text{ squared}", r"\text{ plus one}", r"\text{ factorial}", r"\mathrm{i}", r"\text{ i}", r"\,i")
    ),
    *(
        (r"\frac{1}{2}", rf"\boxed{{\frac{{1}}{{2}}{said}}}")
        for said in (
            r"\text{ to }\frac{1}{3}",
            r"\text{, maybe }\frac13",
            r"\mathrm{or} \frac13",
            r"\text{ squared}",
            r"\mbox{ or }3",
        )
    ),
    *(
        ("-8,2", rf"\boxed{{{said}}}")
        for said in ("x=-8, x=3", r"x=-8\text{ or }x=2\text{ or }x=5", "x=-8=2, x=2", "x=2")
    ),
    *(("(3,4)", rf"\boxed{{{said}}}") for said in ("x=4, y=3", "y=3, x=4", "x=3=4, y=4", "x=3")),
    *(
        (right, rf"\boxed{{{said}{right}}}")
        for right in ("7", r"\frac{1}{2}")
        for said in ("x<y=", "8=", "x=8=", "2x=", "x=3, y=", r"x\neq", "P(X)=-")
    ),
    *(("7", rf"\boxed{{{said}}}") for said in ("x=6, x=7", r"x=6\text{ or }x=7", r"\textbf{(C)}\ 8", "(7) 8")),
    *(("1<x<2", rf"\boxed{{{said}}}") for said in ("1,2", r"\{1,2\}", r"1\text{ and }2", "[1,2]", r"1<x\le 2")),
    *(("1,234", r"\boxed{x=6, x=1234}"), ("I", r"\boxed{I. and II.}"), ("I", r"\boxed{(I) or (II)}")),
    *(("4/3", r"\boxed{2 2/3}"), ("22/3", r"\boxed{2 2/3}"), (r"\frac{60}{7}", r"\boxed{60\text{ percent}}")),
    *(
        ("B", rf"\boxed{{{said}}}")
        for said in (
            "C.",
            "(C) B",
            "B or C",
            "B. or C.",
            r"\text{not B}",
            "AB",
            r"(C)\ 5",
            "C) 5",
            "B, C",
            "B = C",
            "(B) and (C)",
        )
    ),
    *(
        (right, rf"\boxed{{{said}{right}}}")
        for right in ("7", r"\frac{1}{2}", "-8,2")
        for said in ("(3,4)=", "(x=8)=", "x!=", r"(A)\ (3,4)=")
    ),
    *(("1,234", r"\boxed{\boxed{x=8}, \boxed{1,234}}"), ("7", r"\boxed{!=7}"), ("7", r"\boxed{(A)\ !=7}")),
    *(("-8,2", rf"\boxed{{{said}}}") for said in ("|x|=-8,x=2", "x=-8 or x^2=2", "2x=-8, x=2")),
    *(("(3,4)", rf"\boxed{{{said}}}") for said in ("x=3 or x=4", "x=3, x=4", "x=3, 2y=4", "(4,3)=(3,4)")),
    *(
        (right, rf"\boxed{{{right}{said}}}")
        for right in (r"\frac{1}{2}", r"2\pi")
        for said in (r"\,\text{or}\,1", r"\text{ squared}")
    ),
    (r"\frac{1}{2}", r"\boxed{\text{(A) }\frac{1}{2}\text{ (B) }3}"),
    *(("B", rf"\boxed{{{said}}}") for said in (r"(B)\text{or}C", "(B)C_1", "B.1C.2")),
    *(("E. coli", r"\boxed{E. faecalis}"), (r"\frac{2e-1}{3}", r"\boxed{\frac{0.2}{3}}")),
    *(("5+8i", rf"\boxed{{{said}}}") for said in (r"5+8\text{ inches}", "5+8", r"8+5\mathrm{i}", "5+8j")),
]


@pytest.mark.parametrize(("reference", "reply"), RIGHT)
def test_a_right_answer_is_right_however_it_is_written(reference: str, reply: str) -> None:
    assert grade_math(reply, MathTruth(reference)).success


@pytest.mark.parametrize(("reference", "reply"), WRONG)
def test_a_wrong_answer_is_not_read_as_the_right_one(reference: str, reply: str) -> None:
    assert not grade_math(reply, MathTruth(reference)).success
