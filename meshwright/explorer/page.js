// The explorer: what is turned is asked at once; the address says what is asked, so that it can be shared and gone back to.
"use strict";

const PATIENCE = 350; // ms without a keystroke, after which a text is read

const form = document.getElementById("controls");
const main = document.getElementById("answer");
const heading = document.querySelector("h1");
const status = document.getElementById("status");
const question = document.getElementById("question");
const narrow = matchMedia("(max-width: 52rem)"); // as in page.css: there the answer stands above the fields
const controls = [...form.elements].filter(one => one.name);
let asking = null; // what ends the question under way
let typing = null; // the control that is being typed in

function valueOf(one) {
  if (one.type === "checkbox") return one.checked ? "on" : "off";
  return one.value.trim();
}

function isUsual(one) {
  return valueOf(one) === (one.dataset.usual ?? "");
}

function said() {
  const turned = new URLSearchParams();
  for (const one of controls) if (!isUsual(one)) turned.set(one.name, valueOf(one));
  return turned.toString();
}

function turnTo(address) {
  const values = new URLSearchParams(address);
  for (const one of controls) {
    const value = values.get(one.name) ?? one.dataset.usual ?? "";
    if (one.type === "checkbox") one.checked = value === "on";
    else one.value = value;
  }
}

function mark(problems = {}) {
  for (const one of controls) {
    const small = document.getElementById("of-" + one.name);
    one.classList.toggle("turned", !isUsual(one));
    one.setAttribute("aria-invalid", String(one.name in problems));
    if (small) small.textContent = problems[one.name] ?? small.dataset.note;
  }
}

function fill(slot, html) {
  main.querySelector(`[data-slot="${slot}"]`).innerHTML = html;
}

function tell(message, filled) {
  if (message.shown) {
    for (const one of controls) if (one.name in message.shown) one.placeholder = message.shown[one.name];
  }
  if (message.title) {
    document.title = heading.textContent = message.title;
    status.textContent = message.brief;
  }
  if (message.problems) mark(message.problems);
  if (message.slot) {
    filled.add(message.slot);
    fill(message.slot, message.html);
  }
}

async function read(query, filled, signal) {
  const answer = await fetch(`/answer?${query}`, { signal });
  if (!answer.ok) throw new Error(await answer.text());
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) tell(JSON.parse(line), filled);
  }
}

async function ask() {
  asking?.abort();
  const own = asking = new AbortController();
  const filled = new Set();
  const query = location.search.slice(1);
  mark();
  document.body.classList.add("asking");
  main.setAttribute("aria-busy", "true");
  status.textContent = "Searching …";
  try {
    await read(query, filled, own.signal);
    if (filled.has("error")) status.textContent = "No answer: see below";
  } catch (error) {
    if (own.signal.aborted) return;
    status.textContent = "The explorer does not answer: is it still running?";
  }
  for (const one of main.children) {
    if (one.dataset.slot && !filled.has(one.dataset.slot)) one.replaceChildren();
  }
  document.body.classList.remove("asking");
  main.removeAttribute("aria-busy");
}

function turned(control, finished) {
  const query = said();
  if (query !== location.search.slice(1)) {
    const place = query ? "/?" + query : "/";
    if (typing === control) history.replaceState(null, "", place);
    else history.pushState(null, "", place);
    ask();
  }
  typing = finished ? null : control;
}

let waiting = null;
form.addEventListener("input", event => {
  clearTimeout(waiting);
  waiting = setTimeout(() => turned(event.target, false), PATIENCE);
});
form.addEventListener("change", event => {
  clearTimeout(waiting);
  turned(event.target, true);
});
form.addEventListener("submit", event => {
  event.preventDefault();
  clearTimeout(waiting);
  turned(document.activeElement, true);
});
narrow.addEventListener("change", () => { question.open = !narrow.matches; });
addEventListener("popstate", () => {
  turnTo(location.search);
  ask();
});

question.open = !narrow.matches;
turnTo(location.search);
ask();
