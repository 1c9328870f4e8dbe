// Everything here is an extra: without it tables, charts and claims stand as they are, and every chart has its picture.
const all = (what, where = document) => [...where.querySelectorAll(what)];
const make = (tag, values = {}, ...inside) => {
  const element = Object.assign(document.createElement(tag), values);
  element.append(...inside);
  return element;
};
const draw = (tag, values, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in values) element.setAttribute(name, values[name]);
  if (text !== undefined) element.textContent = text;
  return element;
};
const button = (text, press) => {
  const made = make("button", { type: "button", textContent: text });
  made.addEventListener("click", press);
  return made;
};
async function copy(text, said) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {                                       // a page opened from a file, in some browsers
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  said.textContent = "copied";
  setTimeout(() => { said.textContent = ""; }, 2500);
}

// -- tables: sort, filter, measured only, copy -----------------------------------------------------------------------------------------

// The numbers of a position: measured, its spread, published.
const numbers = cell => [".measured:not(.empty)", ".std", ".published"].map(part => {
  const found = cell.querySelector(part);
  if (!found) return "";
  const copied = found.cloneNode(true);
  all(part === ".published" ? ".vh, .apart" : ".std, .sign, sup", copied).forEach(inner => inner.remove());
  return copied.textContent.replace("±", "").replaceAll("−", "-").trim();
});
const name = row => row.cells[0].firstChild.textContent.trim();

// A click on a heading sorts by its column: largest first (words: from A), then the other way, then as it was. Only measured numbers
// count, published ones where a column has no other; empty positions and the mean over the rows stay below.
function sortable(table, rows) {
  const body = table.tBodies[0], top = table.tHead.rows[0], last = table.tHead.rows[table.tHead.rows.length - 1];
  const stubs = top.querySelectorAll(".stub").length;
  const heads = [...[...top.cells].filter(head => table.tHead.rows.length > 1 && head.rowSpan > 1), ...last.cells];
  const read = (cell, part) => {
    const text = (part ? cell.querySelector(part)?.textContent ?? "" : cell.textContent).trim();
    const found = text.replaceAll(",", "").replace("−", "-").match(/[+-]?\d+(\.\d+)?/);
    return { text, number: cell.dataset.order ? +cell.dataset.order : parseFloat(found) };
  };
  const keys = column => {
    const cells = rows.map(row => row.cells[column]);
    const texts = cells.map(cell => read(cell, cell.querySelector(".measured, .published, .why") ? ".measured" : ""));
    return texts.some(key => !isNaN(key.number)) || !cells.some(cell => cell.querySelector(".published"))
      ? texts : cells.map(cell => read(cell, ".published"));
  };
  heads.forEach((head, column) => {
    const press = button("", () => {
      const words = column < stubs, found = keys(column), first = words ? "ascending" : "descending";
      const second = words ? "descending" : "ascending", now = head.getAttribute("aria-sort");
      const next = !now ? first : now === first ? second : "";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      const empty = i => rows[i].classList.contains("mean") ? 2 : !words && isNaN(found[i].number) ? 1 : 0;
      const compare = (i, j) => words ? found[i].text.localeCompare(found[j].text, "en", { numeric: true })
        : found[i].number - found[j].number;
      const order = rows.map((_, i) => i), sign = next === "ascending" ? 1 : -1;
      if (next) order.sort((i, j) => empty(i) - empty(j) || (empty(i) ? 0 : sign * compare(i, j)) || i - j);
      body.append(...order.map(i => rows[i]));
    });
    press.title = "Sort by this column";
    press.append(...head.childNodes);
    head.append(press);
  });
}

// Columns of a table as texts: groups above a column come before its own heading.
function headings(table) {
  const grid = [];
  [...table.tHead.rows].forEach((row, depth) => {
    let at = 0;
    for (const head of row.cells) {
      while (grid[at]?.length > depth) at += 1;
      const span = +(head.dataset.span ?? head.colSpan);
      for (let i = 0; i < span; i += 1, at += 1) {
        grid[at] ??= [];
        for (let down = 0; down < head.rowSpan; down += 1) grid[at].push(down ? "" : head.textContent.trim());
      }
    }
  });
  return grid.map(texts => texts.filter(Boolean).join(" · "));
}

// Hides columns and rows without a number of ours; a heading over several columns shrinks with them.
function measuredOnly(table, on) {
  table.classList.toggle("only", on);
  const last = table.tHead.rows[table.tHead.rows.length - 1], waits = [...last.cells].map(head => head.classList.contains("wait"));
  for (const row of [...table.tHead.rows].slice(0, -1)) {
    let at = 0;
    for (const head of row.cells) {
      if (head.rowSpan > 1) continue;
      head.dataset.span ??= head.colSpan;
      const mine = waits.slice(at, at += +head.dataset.span), live = mine.filter(wait => !wait).length;
      head.classList.toggle("wait", !live);
      head.colSpan = on && live ? live : +head.dataset.span;
    }
  }
}

function asCsv(heads, rows) {
  const quote = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const lines = [heads.flatMap(([text, full]) => full ? [text, `${text} std`, `${text} published`] : [text]),
    ...rows.map(row => row.flatMap(([cell, full]) => full ? numbers(cell) : [cell.textContent.trim()]))];
  return lines.map(line => line.map(quote).join(",")).join("\n") + "\n";
}

function asLatex(heads, rows) {
  const named = { "^": "textasciicircum", "~": "textasciitilde", "<": "textless", ">": "textgreater",
    "|": "textbar", "✓": "checkmark" };
  const mathematical = { "−": "-", "×": "\\times", "±": "\\pm", "α": "\\alpha", "β": "\\beta",
    "γ": "\\gamma", "Δ": "\\Delta", "η": "\\eta", "θ": "\\theta", "λ": "\\lambda", "μ": "\\mu",
    "τ": "\\tau", "ω": "\\omega" };
  const asSign = sign => sign in named ? `\\${named[sign]}{}` : sign in mathematical ? `$${mathematical[sign]}$`
    : sign === "·" ? "--" : sign;
  const escape = text => text.replace(/[\\{}]/g, "").replace(/[%&_#$]/g, "\\$&")
    .replace(/[^\x20-\x7e]|[\^~<>|]/g, asSign);
  const position = ([cell, full]) => {
    if (!full) return escape(cell.textContent.trim());
    const [measured, spread, published] = numbers(cell);
    const number = measured ? `$${measured}${spread ? ` \\pm ${spread}` : ""}$` : "---";
    return number + (published ? ` \\textit{${escape(published)}}` : "");
  };
  return `\\begin{tabular}{l${"r".repeat(heads.length - 1)}}\n\\toprule\n${heads.map(([text]) => escape(text)).join(" & ")} \\\\\n\\midrule\n`
    + rows.map(row => `${row.map(position).join(" & ")} \\\\\n`).join("") + "\\bottomrule\n\\end{tabular}\n";
}

for (const sheet of all(".sheet")) {
  const table = sheet.querySelector("table"), rows = [...table.tBodies[0].rows];
  if (table.classList.contains("sort")) sortable(table, rows);
  if (rows.length < 3 || table.classList.contains("texts")) continue;
  const tools = make("div", { className: "tools" }), said = make("span", { className: "said", role: "status" });
  const caption = sheet.querySelector(".caption").textContent;
  if (table.querySelector(".wait")) {
    const box = make("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => measuredOnly(table, box.checked));
    tools.append(make("label", {}, box, "measured only"));
    measuredOnly(table, true);
  }
  const find = make("input", { type: "search", placeholder: "filter methods", ariaLabel: `Filter the rows of: ${caption}` });
  find.addEventListener("input", () => {
    const words = find.value.toLowerCase().split(/[ ,]+/).filter(Boolean);
    rows.forEach(row => { row.hidden = words.length > 0 && !words.some(word => row.cells[0].textContent.toLowerCase().includes(word)); });
  });
  const shown = write => {
    const heads = headings(table), live = [...table.tBodies[0].rows].filter(row => row.offsetParent);
    const seen = heads.map((_, i) => rows.some(row => row.cells[i].offsetParent)), full = heads.map((_, i) => rows.some(row => row.cells[i].querySelector(".measured, .published")));
    const pick = list => list.map((item, i) => [item, full[i]]).filter((_, i) => seen[i]);
    const first = row => [make("th", { textContent: name(row) }), ...[...row.cells].slice(1)];
    return write(pick(heads), live.map(row => pick(first(row))));
  };
  tools.append(find, button("Copy CSV", () => copy(shown(asCsv), said)), button("Copy LaTeX", () => copy(shown(asLatex), said)), said);
  sheet.querySelector(".wrap").before(tools);
}
for (const command of all(".cmd")) {
  const said = make("span", { className: "said", role: "status" });
  command.append(button("Copy", () => copy(command.querySelector("code").textContent, said)), said);
}
// A shadow at the right edge says that a table goes on.
for (const scroll of all(".wrap > .scroll")) {
  const look = () => scroll.parentElement.classList.toggle("more", scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft > 4);
  scroll.addEventListener("scroll", look, { passive: true });
  const watch = new ResizeObserver(look);
  watch.observe(scroll);
  watch.observe(scroll.firstElementChild);
}

// -- points: hover, a finger or arrow keys read one; a method's name shows it alone -----------------------------------------------------

for (const figure of all(".points")) {
  const svg = figure.querySelector("svg"), said = figure.querySelector(".read"), points = all("[data-x]", svg), rest = said.textContent;
  const order = [...points].sort((a, b) => a.dataset.x - b.dataset.x);
  let now = null;
  const show = point => {
    now?.classList.remove("on");
    now = point;
    now?.classList.add("on");
    said.textContent = now ? now.querySelector("title").textContent : rest;
  };
  svg.addEventListener("pointermove", event => {
    const matrix = svg.getScreenCTM().inverse(), x = event.clientX * matrix.a + matrix.e, y = event.clientY * matrix.d + matrix.f;
    let best = 200, hit = null;
    for (const point of points) {
      const far = (point.dataset.x - x) ** 2 + (point.dataset.y - y) ** 2;
      if (far < best) [best, hit] = [far, point];
    }
    show(hit);
  });
  svg.addEventListener("pointerleave", () => show(null));
  svg.addEventListener("blur", () => show(null));
  svg.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (event.key === "Escape") show(null);
    if (!step) return;
    event.preventDefault();
    show(order[(order.indexOf(now) + step + order.length + (now ? 0 : step < 0 ? 1 : 0)) % order.length]);
  });
  for (const item of all(".keys li", figure)) {
    const press = button("", () => {
      const on = press.getAttribute("aria-pressed") !== "true";
      all(".keys button", figure).forEach(other => other.setAttribute("aria-pressed", other === press && on));
      svg.classList.toggle("dim", on);
      points.forEach(point => point.classList.toggle("same", point.dataset.k === item.dataset.k));
    });
    press.setAttribute("aria-pressed", "false");
    press.append(...item.childNodes);
    item.append(press);
  }
}

// -- lines over rounds or over a number: hover and arrow keys read values, boxes choose methods, a logarithmic axis ------------------------

const WIDE = 760, HIGH = 320, LEFT = 46, RIGHT = 18, TOP = 22, LOW = 34, BANDS = 6, SHOWN = 12, MARKED = 12;

function steps(low, high, wanted) {
  const raw = (high - low) / wanted || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(one => one >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(+at.toPrecision(10));
  return found;
}

// One panel: { title, unit, x, lines: { name: [[x, mean, least, most], ...] } }. Returns its drawing and what its state changes.
function panel(data, keys, label) {
  const svg = draw("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", tabindex: 0, "aria-label": `${label}; left and right keys read values` });
  const names = Object.keys(data.lines), every = names.flatMap(line => data.lines[line]);
  const xs = [...new Set(every.map(point => point[0]))].sort((a, b) => a - b), state = { logX: xs[0] > 0 && xs[xs.length - 1] > 10 * xs[0], logY: false, at: null };
  const low = Math.min(...every.map(point => point[2])), high = Math.max(...every.map(point => point[3]));
  const scale = (log, from, to, begin, end) => {
    const f = log ? Math.log10 : value => value, first = f(from), range = f(to) - first || 1;
    return value => begin + (f(Math.max(value, from)) - first) / range * (end - begin);
  };
  let across = null;
  const hair = draw("line", { class: "hair", y1: TOP, y2: HIGH - LOW });
  const redraw = chosen => {
    const least = state.logY ? Math.max(low, 1) : low - (high - low) * 0.04, most = high + (high - low) * 0.04;
    const from = state.logX ? xs.find(x => x > 0) : xs[0];
    across = scale(state.logX, from, xs[xs.length - 1], LEFT, WIDE - RIGHT);
    const up = scale(state.logY, least, most, HIGH - LOW, TOP);
    svg.replaceChildren();
    const marks = state.logY ? [1, 2, 5, 10, 20, 50, 100].filter(y => y >= least && y <= most) : steps(least, most, 7);
    for (const y of marks) svg.append(draw("path", { class: "grid", d: `M${LEFT} ${up(y)}H${WIDE - RIGHT}` }), draw("text", { class: "r", x: LEFT - 6, y: up(y) + 4 }, y));
    const ticks = state.logX ? xs.filter(x => x > 0 && (xs.length < 12 || [1, 2, 5].includes(+x.toExponential()[0]) && /^[125]e/.test(x.toExponential())))
      : xs.length < 12 ? xs : steps(xs[0], xs[xs.length - 1], 6);
    let free = -99;
    for (const x of ticks) {
      if (across(x) < free) continue;
      svg.append(draw("text", { class: "c", x: across(x), y: HIGH - LOW + 16 }, x));
      free = across(x) + 34;
    }
    svg.append(draw("text", { class: "r", x: WIDE - RIGHT, y: HIGH - 2 }, data.x), draw("text", { x: LEFT, y: 14 }, [data.unit, data.title].filter(Boolean).join(" · ")));
    const seen = names.filter(line => chosen.has(line));
    for (const line of seen) {
      const [hue, shape] = keys[line] ?? [3, 0], points = data.lines[line].filter(point => !state.logX || point[0] > 0), style = `--c: var(--c${hue})`;
      const path = at => points.map(point => `${across(point[0]).toFixed(1)} ${up(point[at]).toFixed(1)}`);
      if (seen.length <= BANDS && points.some(point => point[2] !== point[3]))
        svg.append(draw("path", { class: "band", style, d: `M${[...path(3), ...path(2).reverse()].join("L")}z` }));
      svg.append(draw("path", { class: `line-of s${shape % 4}`, style, "data-line": line, d: `M${path(1).join("L")}` }));
      if (points.length <= MARKED) svg.append(...points.map(point => draw("circle", { class: "at", style, r: 3, cx: across(point[0]), cy: up(point[1]) })));
    }
    if (state.at !== null) {
      hair.setAttribute("x1", across(state.at));
      hair.setAttribute("x2", across(state.at));
      svg.append(hair);
    }
  };
  return { svg, data, xs, state, redraw, nearest: x => xs.reduce((best, one) => Math.abs(across(one) - x) < Math.abs(across(best) - x) ? one : best) };
}

function chart(figure, { keys, panels }, label) {
  const names = [...new Set(panels.flatMap(one => Object.keys(one.lines)))];
  const end = line => { const found = panels.find(one => one.lines[line]).lines[line]; return found[found.length - 1][1]; };
  names.sort((a, b) => end(b) - end(a));
  const fixed = names.filter(line => (keys[line] ?? [])[0] < 3 && !keys[line][1]), chosen = new Set([...new Set([...fixed, ...names])].slice(0, SHOWN));
  const parts = panels.map((one, i) => panel(one, keys, panels.length > 1 ? `${label}, part ${i + 1}` : label));
  const list = make("ul", { className: "picks" }), when = make("p", { className: "small" }), outputs = {}, boxes = {};
  when.setAttribute("aria-live", "polite");
  const redraw = () => parts.forEach(one => one.redraw(chosen));
  const read = (part, x) => {
    parts.forEach(one => { one.state.at = one === part ? x : null; });
    const { data, xs } = part, at = x ?? xs[xs.length - 1];
    when.textContent = `${[data.unit, data.title].filter(Boolean).join(", ")}, ${data.x} ${at}`;
    for (const line of names) {
      const point = data.lines[line]?.find(one => one[0] === at);
      outputs[line].textContent = point ? point[1].toFixed(1) : "";
    }
    redraw();
  };
  for (const line of names) {
    const [hue, shape] = keys[line] ?? [3, 0], key = draw("svg", { width: 22, height: 8, "aria-hidden": "true", style: `--c: var(--c${hue})` });
    key.append(draw("path", { class: `line-of s${shape % 4}`, d: "M0 4H22" }));
    boxes[line] = make("input", { type: "checkbox", checked: chosen.has(line) });
    boxes[line].addEventListener("change", () => { chosen[boxes[line].checked ? "add" : "delete"](line); redraw(); });
    outputs[line] = make("span", { className: "value" });
    list.append(make("li", {}, make("label", {}, boxes[line], key, line), outputs[line]));
  }
  const choose = wanted => { chosen.clear(); wanted.forEach(line => chosen.add(line)); names.forEach(line => { boxes[line].checked = chosen.has(line); }); redraw(); };
  const presets = make("p", { className: "presets" }, button("all", () => choose(names)), button("none", () => choose([])));
  for (const [axis, text] of [["logX", `logarithmic ${panels[0].x}`], ["logY", "logarithmic values"]]) {
    const press = button(text, () => {
      const on = press.getAttribute("aria-pressed") !== "true";
      press.setAttribute("aria-pressed", on);
      parts.forEach(one => { one.state[axis] = on; });
      redraw();
    });
    press.setAttribute("aria-pressed", String(parts.some(one => one.state[axis])));
    if (axis === "logY" || parts.every(one => one.xs.filter(x => x > 0).length > 1)) presets.append(press);
  }
  for (const part of parts) {
    const { svg, xs } = part;
    svg.addEventListener("pointermove", event => { const matrix = svg.getScreenCTM().inverse(); read(part, part.nearest(event.clientX * matrix.a + matrix.e)); });
    svg.addEventListener("pointerleave", () => read(part, null));
    svg.addEventListener("keydown", event => {
      const now = part.state.at === null ? xs.length - 1 : xs.indexOf(part.state.at);
      const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: xs.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      read(part, xs[Math.max(0, Math.min(xs.length - 1, next))]);
    });
  }
  figure.prepend(make("div", { className: "live" }, make("div", { className: "panels" }, ...parts.map(one => one.svg)), make("div", {}, when, list, presets)));
  figure.classList.add("drawn");
  read(parts[0], null);
}

for (const figure of all(".chart")) {
  const image = figure.querySelector("img");
  chart(figure, JSON.parse(figure.querySelector("script").textContent), image.alt);
}

// What is folded is printed, too, but for the readings under every table, which stand together at the end; a link into it unfolds it.
const unfold = () => { for (let at = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1))); at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true; };
addEventListener("hashchange", () => { unfold(); document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView(); });
unfold();
addEventListener("beforeprint", () => all("details:not([open], .told)").forEach(one => { one.open = true; one.dataset.was = ""; }));
addEventListener("afterprint", () => all("details[data-was]").forEach(one => { one.open = false; delete one.dataset.was; }));
