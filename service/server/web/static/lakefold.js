// SPDX-License-Identifier: Apache-2.0
// The dynamic parts of the page: live parts are fetched again and replaced, a running plan's bytes arrive as events, the
// theme is stored in a cookie, commands are copied, and arrow keys move along partitions and bars. The page is
// readable without this script.
"use strict";

const EVERY_MS = 5000;
/** The interval while a person waits for an answer, which a part marks with data-soon. */
const SOON_MS = 1000;
const root = document.documentElement;
root.classList.add("js");

const remembered = {
  get: (key) => { try { return localStorage.getItem(key); } catch { return null; } },
  set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* the value is not stored */ } },
};

let paused = remembered.get("lakefold-paused") === "yes";

addEventListener("DOMContentLoaded", () => {
  liveParts();
  themeButton();
  document.addEventListener("click", copyCommand);
  document.addEventListener("keydown", walkStrip);
  document.addEventListener("submit", confirmFirst);
  prepare(document);
  followPlan();
});

/** Initialize a part; called again after it was replaced. */
function prepare(scope) {
  for (const strip of scope.querySelectorAll("[data-walk]")) {
    const cells = [...strip.querySelectorAll("a")];
    const current = cells.find((cell) => cell.hasAttribute("aria-current")) ?? cells[0];
    for (const cell of cells) cell.tabIndex = cell === current ? 0 : -1;
  }
}

function liveParts() {
  const button = document.querySelector("[data-pause]");
  const told = document.querySelector("[data-live-state]");
  if (!document.querySelector("[data-live]") || !button) return;
  const show = () => {
    button.textContent = paused ? "Resume updates" : "Pause updates";
    button.setAttribute("aria-pressed", String(paused));
    if (paused) told.textContent = "Paused";
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    remembered.set("lakefold-paused", paused ? "yes" : "no");
    show();
    if (!paused) refresh();
  });
  const look = async () => { if (!paused && !document.hidden && !busy()) await refresh(); };
  const later = () => setTimeout(async () => { await look(); later(); },
    document.querySelector("[data-soon]") ? SOON_MS : EVERY_MS);
  document.addEventListener("visibilitychange", look);
  show();
  later();
}

/** Return true if a person selects text inside a live part: a replacement would interrupt this. */
function busy() {
  const selection = getSelection();
  const inside = (node) => (node instanceof Element ? node : node?.parentElement)?.closest("[data-live]");
  return Boolean(selection && !selection.isCollapsed && inside(selection.anchorNode));
}

async function refresh() {
  const told = document.querySelector("[data-live-state]");
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!next || next.innerHTML === part.innerHTML) continue;
      exchange(part, next);
    }
    root.removeAttribute("data-stale");
    told.textContent = "";
    const time = fresh.querySelector("[data-updated]");
    if (time) document.querySelector("[data-updated]").innerHTML = time.innerHTML;
  } catch {
    root.setAttribute("data-stale", "");
    told.textContent = "No answer; trying again";
  }
}

/** Replace a part; the focus, opened details and scroll positions are preserved. */
function exchange(part, next) {
  const focused = part.contains(document.activeElement) ? pathTo(part, document.activeElement) : null;
  const opened = [...part.querySelectorAll("details")].map((details) => details.open);
  const scrolled = [...part.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  part.replaceChildren(...next.cloneNode(true).childNodes);
  [...part.querySelectorAll("details")].forEach((details, index) => { if (opened[index]) details.open = true; });
  [...part.querySelectorAll(".scroll")].forEach((box, index) => { box.scrollLeft = scrolled[index] ?? 0; });
  prepare(part);
  if (focused) focused.reduce((node, index) => node?.children[index], part)?.focus({ preventScroll: true });
}

function pathTo(part, element) {
  const path = [];
  for (let node = element; node !== part; node = node.parentElement) {
    path.unshift([...node.parentElement.children].indexOf(node));
  }
  return path;
}

function themeButton() {
  const button = document.querySelector("[data-theme-button]");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const show = () => { button.textContent = now() === "dark" ? "Light theme" : "Dark theme"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    document.cookie = `lakefold_theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict`;
    show();
  });
  dark.addEventListener("change", show);
  show();
}

async function copyCommand(event) {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  const command = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(command.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } catch { // an insecure origin has no clipboard: select the text, so that the person can copy it
    getSelection().selectAllChildren(command);
  }
}

/** Make a part one tab stop; arrow keys, Home and End move along its links. */
function walkStrip(event) {
  const cell = event.target.closest?.("[data-walk] a");
  if (!cell) return;
  const cells = [...cell.closest("[data-walk]").querySelectorAll("a")];
  const at = cells.indexOf(cell);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: cells.length - 1 }[event.key];
  if (to === undefined || !cells[to]) return;
  event.preventDefault();
  cell.tabIndex = -1;
  cells[to].tabIndex = 0;
  cells[to].focus();
}

function confirmFirst(event) {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
}

/** Show a live plan's bytes as they are written, and replace the other parts at each change of state or step. */
function followPlan() {
  const source = document.querySelector("[data-progress]");
  if (!source) return;
  const events = new EventSource(source.dataset.progress);
  let seen = "";
  const onEvent = (event) => {
    if (paused) return;
    const plan = JSON.parse(event.data);
    const bar = document.querySelector("[data-progress] progress");
    if (bar && plan.progress_bytes_total) {
      bar.max = plan.progress_bytes_total;
      bar.value = plan.progress_bytes_done;
      document.querySelector("[data-progress-text]").textContent =
        `${bytes(plan.progress_bytes_done)} of ${bytes(plan.progress_bytes_total)}`;
    }
    const now = `${plan.state} ${plan.step} ${plan.attempts}`;
    if (seen && now !== seen) refresh();
    seen = now;
    if (["completed", "failed", "cancelled"].includes(plan.state)) events.close();
  };
  events.addEventListener("progress", onEvent);
}

/** Times are UTC; the tooltip also shows the local time. */
document.addEventListener("mouseover", (event) => {
  const time = event.target.closest("time[datetime]");
  if (time === null || time.dataset.here) return;
  time.dataset.here = new Date(time.dateTime).toLocaleString();
  time.title += ` · ${time.dataset.here} here`;
});

/** Format bytes as the server does. */
function bytes(count) {
  if (count < 1024) return `${count} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = -1;
  do { count /= 1024; unit += 1; } while (count >= 1023.5 && unit < units.length - 1);
  return `${count.toFixed(count < 99.95 ? 1 : 0)} ${units[unit]}`;
}
