"""What a right answer is, for all of the apps beside this file: the last number that they give back."""

import re


def last_number(task, result):
    numbers = re.findall(r"-?\d+", str(result))
    return bool(numbers) and numbers[-1] == task.ground_truth.answer


def last_boxed(task, result):
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", str(result))
    return bool(boxed) and boxed[-1].strip() == task.ground_truth.answer
