// Everything here is an extra: without it tabs, folds and links work, and every number is on the page.
const all = (what, where = document) => [...where.querySelectorAll(what)];
const button = (text, press) => {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", textContent: text });
  made.addEventListener("click", () => press(made));
  return made;
};
async function copy(text, pressed) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // a page opened from a file, in some browsers
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const words = pressed.textContent;
  pressed.textContent = "Copied";
  setTimeout(() => { pressed.textContent = words; }, 1500);
}

// -- tables: copy and sort
const part = (cell, what) => (cell.querySelector(what)?.textContent ?? "").replace("±", "").replaceAll("−", "-");
function csv(table) {
  const stubs = all(".stub", table).length;
  const heads = [...table.tHead.rows].map(row => [...row.cells].flatMap(
    cell => Array(cell.colSpan).fill(cell.textContent.trim())));
  heads.slice(1).forEach(row => row.unshift(...Array(stubs).fill("")));
  const quote = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const names = heads[0].map((_, i) => [...new Set(heads.map(row => row[i]))].filter(Boolean).join(" "));
  const head = names.flatMap((name, i) => i < stubs ? [name] : [name, `${name} sd`, `${name} printed`]);
  const rows = [...table.tBodies[0].rows].map(row => [...row.cells].flatMap((cell, i) =>
    i < stubs ? [cell.textContent] : [".m", "small", "i"].map(what => part(cell, what))));
  return [head, ...rows].map(row => row.map(quote).join()).join("\n") + "\n";
}
for (const tools of all("[data-tables]")) {
  const visible = () => all(".pane", tools.parentElement).find(pane => getComputedStyle(pane).display !== "none");
  tools.append(
    button("Copy LaTeX", pressed => copy(visible().dataset.latex, pressed)),
    button("Copy CSV", pressed => copy(all(".nums", visible()).map(csv).join("\n"), pressed)),
  );
}
for (const table of all(".nums")) {
  const rows = [...table.tBodies[0].rows], stubs = all(".stub", table).length, last = [...table.tHead.rows].at(-1);
  const heads = [...last.cells].filter(cell => !cell.classList.contains("stub"));
  heads.forEach((head, i) => {
    head.replaceChildren(button(head.textContent, () => {
      const next = { descending: "ascending", ascending: "" }[head.getAttribute("aria-sort")] ?? "descending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      const key = row => row.classList.contains("mean") ? NaN : parseFloat(part(row.cells[stubs + i], ".m"));
      const sign = next === "ascending" ? 1 : -1;
      const order = !next ? rows : [...rows].sort((a, b) => isNaN(key(a)) - isNaN(key(b)) || sign * (key(a) - key(b)) || 0);
      table.tBodies[0].append(...order);
    }));
  });
}

// -- boxes that copy
for (const box of all("[data-copy]")) {
  const pressed = button("Copy", pressed => copy(box.textContent, pressed));
  pressed.className = "copy";
  box.parentElement.querySelector("h3").append(pressed);
}

// -- claims: a verdict's count shows its claims alone
for (const tally of all("[data-filter]")) {
  const keys = all(".k", tally);
  for (const key of keys) {
    const kind = key.classList[1], pressed = button("", () => {
      const on = pressed.getAttribute("aria-pressed") !== "true";
      all("button", tally).forEach(other => other.setAttribute("aria-pressed", other === pressed && on));
      all("#claims .c, #open li").forEach(row => { row.hidden = on && !row.classList.contains(kind); });
      const fold = document.getElementById("open");
      if (on && fold) fold.open = /^not_/.test(kind);
    });
    pressed.setAttribute("aria-pressed", "false");
    key.replaceWith(pressed);
    pressed.append(key);
  }
}
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();

// -- squares: words under the pointer or the focus, arrow keys from one to the next
const hover = Object.assign(document.createElement("div"), { className: "hover", hidden: true });
document.body.append(hover);
for (const group of all(".waffle")) {
  const squares = all(".q", group);
  const show = event => {
    const box = event.target.getBoundingClientRect();
    hover.textContent = event.target.getAttribute("aria-label");
    hover.hidden = false;
    hover.style.left = `${Math.max(8, Math.min(box.left, innerWidth - hover.offsetWidth - 8)) + scrollX}px`;
    hover.style.top = `${box.bottom + 6 + scrollY}px`;
  };
  for (const [on, off] of [["pointerover", "pointerout"], ["focusin", "focusout"]]) {
    group.addEventListener(on, event => event.target.matches(".q") && show(event));
    group.addEventListener(off, () => { hover.hidden = true; });
  }
  group.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], at = squares.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    squares[at].tabIndex = -1;
    const next = squares[(at + step + squares.length) % squares.length];
    next.tabIndex = 0;
    next.focus();
  });
}

// -- figures: what a line or a point belongs to is marked under the pointer
for (const panels of all(".panels")) {
  const light = key => {
    panels.classList.toggle("dimmed", Boolean(key));
    all("[data-key]", panels).forEach(one => one.classList.toggle("lit", one.dataset.key === key));
  };
  panels.addEventListener("pointerover", event => light(event.target.closest("[data-key]")?.dataset.key));
  panels.addEventListener("pointerleave", () => light());
}
