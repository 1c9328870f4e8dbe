// A click on a heading sorts the table by its column: largest first (words: from A), then the other way, then as it was. Only measured
// numbers count, the published ones only where a column has no other; empty positions and the mean over the rows stay below.
for (const table of document.querySelectorAll("table.sort")) {
  const body = table.tBodies[0], rows = [...body.rows], last = table.tHead.rows[table.tHead.rows.length - 1];
  const stubs = table.tHead.rows.length > 1 ? [...table.tHead.rows[0].cells].filter(head => head.rowSpan > 1) : [];
  const heads = [...stubs, ...last.cells];
  const read = (cell, kind) => {
    const part = kind ? cell.querySelector(kind) : cell, text = part ? part.textContent.trim() : "";
    const number = parseFloat(text.replaceAll(",", "").replace("−", "-").match(/[+-]?\d+(\.\d+)?/));
    return { text, number: cell.dataset.order ? +cell.dataset.order : number };
  };
  const keys = column => {
    const cells = rows.map(row => row.cells[column]), parts = ".measured, .published, .why";
    const texts = cells.map(cell => read(cell, cell.querySelector(parts) ? ".measured" : ""));
    return texts.some(key => !isNaN(key.number)) || !cells.some(cell => cell.querySelector(".published")) ? texts : cells.map(cell => read(cell, ".published"));
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const found = keys(column), words = column < (table.tHead.rows[0].querySelectorAll(".stub").length);
      const first = words ? "ascending" : "descending", second = first === "ascending" ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort"), next = !now ? first : now === first ? second : "";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      const empty = i => rows[i].classList.contains("mean") ? 2 : !words && isNaN(found[i].number) ? 1 : 0;
      const compare = (i, j) => words ? found[i].text.localeCompare(found[j].text, "en", { numeric: true }) : found[i].number - found[j].number;
      const order = rows.map((_, i) => i);
      const sign = next === "ascending" ? 1 : -1;
      if (next) order.sort((i, j) => empty(i) - empty(j) || (empty(i) ? 0 : sign * compare(i, j)) || i - j);
      body.append(...order.map(i => rows[i]));
    });
  });
}
