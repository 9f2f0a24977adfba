"use strict";
{
  const form = document.getElementById("filters");
  const list = document.getElementById("rows");
  const rows = [...document.querySelectorAll("details.row")];
  const matching = document.getElementById("matching");
  const number = (text, otherwise) => (text === "" ? otherwise : Number(text));
  const scoresOf = (row) => JSON.parse(row.dataset.scores).map(([, score]) => score).filter((score) => score !== null);
  const lowest = new Map(rows.map((row) => [row, Math.min(...scoresOf(row), Infinity)]));
  const problem = (row) => row.querySelector(".problem").textContent;
  const said = new Map();  // what a row says, in small letters: made when it is first searched

  const orders = {
    lowest: (a, b) => lowest.get(a) - lowest.get(b) || 0,
    margin: (a, b) => Number(b.dataset.margin) - Number(a.dataset.margin),
    latest: (a, b) => Number(b.dataset.step) - Number(a.dataset.step),
    problem: (a, b) => problem(a).localeCompare(problem(b)),
  };

  function says(row, words) {
    if (!said.has(row)) said.set(row, row.textContent.toLowerCase());
    return words.every((word) => said.get(row).includes(word));
  }

  function matches(row, wanted, words) {
    const { step, category, outcome, scores } = row.dataset;
    if (Number(step) < number(wanted.from, -Infinity) || Number(step) > number(wanted.to, Infinity)) return false;
    if (wanted.category && category !== wanted.category) return false;
    if (wanted.outcome && outcome !== wanted.outcome) return false;
    if (words.length && !says(row, words)) return false;
    const low = number(wanted.low, -Infinity), high = number(wanted.high, Infinity);
    if (!wanted.role && low === -Infinity && high === Infinity) return true;
    // An action of the wanted role whose score lies between; an action without a score matches no bound.
    return JSON.parse(scores).some(([role, score]) =>
      (!wanted.role || role === wanted.role) &&
      (score === null ? low === -Infinity && high === Infinity : score >= low && score <= high));
  }

  function filter() {
    const wanted = Object.fromEntries(new FormData(form));
    const words = wanted.words.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      row.hidden = !matches(row, wanted, words);
      count += !row.hidden;
    }
    matching.textContent = count === rows.length ? `${count} episodes` : `${count} of ${rows.length} episodes`;
  }

  function sort() {
    const order = orders[form.elements.sort.value];
    list.append(...(order ? [...rows].sort(order) : rows));
  }

  // A link to one episode opens its row, also one that the filter hides. The address may name anything.
  function open() {
    let id = location.hash.slice(1);
    try { id = decodeURIComponent(id); } catch { return; }
    const row = document.getElementById(id)?.closest("details.row");
    if (!row) return;
    row.hidden = false;
    row.open = true;
    row.scrollIntoView();
    row.querySelector("summary").focus({ preventScroll: true });
  }

  form.hidden = false;
  form.addEventListener("input", filter);
  form.elements.sort.addEventListener("change", sort);
  form.addEventListener("reset", () => setTimeout(() => { filter(); sort(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", open);
  open();
}
