"use strict";
{
  const form = document.getElementById("filters");
  const rows = [...document.querySelectorAll("details.row")];
  const matching = document.getElementById("matching");
  const number = (text, otherwise) => (text === "" ? otherwise : Number(text));

  function matches(row, wanted) {
    const { step, category, outcome, task, scores } = row.dataset;
    if (Number(step) < number(wanted.from, -Infinity) || Number(step) > number(wanted.to, Infinity)) return false;
    if (wanted.category && category !== wanted.category) return false;
    if (wanted.outcome && outcome !== wanted.outcome) return false;
    if (wanted.task && !task.toLowerCase().includes(wanted.task.toLowerCase())) return false;
    const low = number(wanted.low, -Infinity), high = number(wanted.high, Infinity);
    if (!wanted.role && low === -Infinity && high === Infinity) return true;
    // An action of the wanted role whose score lies between; an action without a score matches no bound.
    return JSON.parse(scores).some(([role, score]) =>
      (!wanted.role || role === wanted.role) &&
      (score === null ? low === -Infinity && high === Infinity : score >= low && score <= high));
  }

  function filter() {
    const wanted = Object.fromEntries(new FormData(form));
    let count = 0;
    for (const row of rows) {
      row.hidden = !matches(row, wanted);
      count += !row.hidden;
    }
    matching.textContent = count === rows.length ? `${count} episodes` : `${count} of ${rows.length} episodes`;
  }

  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
}
