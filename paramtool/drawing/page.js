"use strict";
// Treemaps that can be opened, and tables that can be filtered.  It asks nothing of any network, and the page's policy
// would not let it.  The rules of `squarify` and `boxes` are those of treemap.py; a test compares both.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const HEAD = 17, PAD = 2, LEAST = 34, MIN_HEADED = 48, MIN_SIDE = 1.5, MAX_DEPTH = 8, LETTER = 6.7, LINE = 14, MOST = 1500;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  function worst(most, least, row, side, scale) {
    const area = row * scale;
    if (side <= 0 || area <= 0) return 0;
    return Math.max(side * side * most * scale / (area * area), area * area / (side * side * least * scale));
  }

  function squarify(values, x, y, width, height) {
    const found = [];
    let total = values.reduce((sum, one) => sum + one, 0), k = 0;
    while (k < values.length) {
      const side = Math.min(width, height), scale = total > 0 ? width * height / total : 0;
      let row = values[k], stop = k + 1, bad = worst(values[k], values[k], row, side, scale);
      while (stop < values.length) {
        const longer = row + values[stop], worse = worst(values[k], values[stop], longer, side, scale);
        if (worse > bad) break;
        row = longer; bad = worse; stop += 1;
      }
      const thick = side > 0 ? row * scale / side : 0;
      let place = 0;
      for (const value of values.slice(k, stop)) {
        const part = value / row * side;
        found.push(width >= height ? [x, y + place, thick, part] : [x + place, y, part, thick]);
        place += part;
      }
      if (width >= height) { x += thick; width = Math.max(0, width - thick); }
      else { y += thick; height = Math.max(0, height - thick); }
      total -= row;
      k = stop;
    }
    return found;
  }

  const hasHead = (width, height) => height >= MIN_HEADED && width >= MIN_HEADED;

  function inside(box) {
    let { x, y, width, height } = box;
    if (box.depth) {
      const head = hasHead(width, height) ? HEAD : PAD;
      x += PAD; y += head; width -= 2 * PAD; height -= head + PAD;
    }
    const nodes = box.node.children.filter((one) => one.nbytes > 0).sort((a, b) => b.nbytes - a.nbytes);
    const places = squarify(nodes.map((one) => one.nbytes), x, y, width, height);
    return nodes.map((node, k) => {
      const [left, top, wide, high] = places[k], depth = box.depth + 1;
      const opens = node.children.length > 0 && Math.min(wide, high) >= LEAST && depth < MAX_DEPTH;
      return { node, x: left, y: top, width: wide, height: high, depth, isOpen: opens };
    }).filter((one) => Math.min(one.width, one.height) >= MIN_SIDE);
  }

  function boxes(node, width, height) {
    const found = [], stack = [{ node, x: 0, y: 0, width, height, depth: 0, isOpen: true }];
    while (stack.length && found.length < MOST) {
      const box = stack.pop();
      if (box.depth) found.push(box);
      if (box.isOpen) stack.push(...inside(box).reverse());
    }
    return found;
  }

  function tree(row, parent) {
    const [name, nbytes, tint, marks, words, count, children] = row;
    const node = { name, nbytes, tint, marks, words, count, parent, children: [] };
    node.children = children.map((one) => tree(one, node));
    return node;
  }

  function short(text, letters) {
    const all = Array.from(text);
    if (all.length <= letters) return text;
    if (letters < 6) return "";
    const end = Math.floor((letters - 1) * 2 / 3);
    return all.slice(0, letters - 1 - end).join("") + "…" + all.slice(all.length - end).join("");
  }

  function made(name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  const near = (value) => String(Math.round(value * 100) / 100);

  function start(figure) {
    const root = tree(JSON.parse(figure.querySelector("script").textContent), null);
    const stage = figure.querySelector(".stage"), crumbs = figure.querySelector(".crumbs");
    const about = figure.querySelector(".about"), status = figure.querySelector(".status");
    const title = figure.dataset.map;
    let here = root, shown = [], wide = 0;

    function tell(node) {
      about.textContent = node === root ? "" : `${path(node)}: ${node.words}`;
    }

    function path(node) {
      const names = [];
      for (let one = node; one && one !== root; one = one.parent) names.unshift(one.name);
      return names.join(" › ") || "everything";
    }

    function draw(focused) {
      const width = stage.clientWidth || 1040;
      const height = width < 560 ? 440 : Math.min(640, width / 2);
      wide = width;
      const svg = made("svg", { viewBox: `0 0 ${near(width)} ${near(height)}`, role: "group", class: "map",
        "aria-label": `${title}: ${path(here)}, ${here.words}. Arrow keys move, Enter opens, Escape goes back.` });
      const all = boxes(here, width, height);
      shown = [];
      const picture = made("g", { "aria-hidden": "true" });
      picture.append(...all.map(drawn));
      svg.append(picture);
      for (const box of all) if (box.depth === 1) shown.push({ box, g: button(box) });
      svg.append(...shown.map((one) => one.g));
      stage.replaceChildren(svg);
      const first = shown.find((one) => one.box.node === focused) || shown[0];
      if (first) first.g.setAttribute("tabindex", "0");
      trail();
      return first;
    }

    function placed(box) {
      return { x: near(box.x), y: near(box.y), width: near(Math.max(0.5, box.width - 1)),
        height: near(Math.max(0.5, box.height - 1)) };
    }

    // What keys and screen readers use: an outline over everything that is drawn inside a module.
    function button(box) {
      const { node } = box, more = node.children.length ? ", a module" : "";
      const hit = made("rect", { ...placed(box), class: "hit", role: "button", tabindex: "-1",
        "aria-label": `${node.name}${more}, ${node.words}` });
      hit.node = node;
      return hit;
    }

    function drawn(box) {
      const { node } = box, g = made("g", {}), place = placed(box);
      g.node = node;
      g.append(made("title", {}, `${node.name}: ${node.words}`));
      g.append(made("rect", { ...place, class: `box ${box.isOpen ? "frame" : "t-" + node.tint}` }));
      if (node.marks && !box.isOpen) g.append(made("rect", { ...place, class: `m-${node.marks}` }));
      const room = box.isOpen ? hasHead(box.width, box.height) : box.height >= LINE + 2;
      const text = room ? short(node.name, Math.floor((box.width - 8) / LETTER)) : "";
      const halo = node.marks ? { class: `k-${node.tint}` } : {};
      if (text) g.append(made("text", { x: near(box.x + 4), y: near(box.y + 12.5), ...halo }, text));
      return g;
    }

    function trail() {
      const nodes = [];
      for (let one = here; one; one = one.parent) nodes.unshift(one);
      crumbs.replaceChildren(...nodes.flatMap((node, k) => {
        const name = node === root ? "everything" : node.name;
        const last = k === nodes.length - 1, element = document.createElement(last ? "span" : "button");
        element.textContent = last ? `${name} · ${node.words}` : name;
        if (last) return [element];
        element.type = "button";
        element.addEventListener("click", () => open(node, nodes[k + 1]));
        const between = document.createElement("span");
        between.textContent = "›";
        between.setAttribute("aria-hidden", "true");
        return [element, between];
      }));
    }

    function open(node, focused) {
      if (!node.children.length || node === here) return;
      here = node;
      const first = draw(focused);
      status.textContent = `${path(here)}: ${here.words}`;
      if (first) first.g.focus();
      tell(here);
      if (!calm.matches && stage.firstChild.animate) {
        stage.firstChild.animate([{ opacity: 0.35 }, { opacity: 1 }], { duration: 160 });
      }
    }

    function out() {
      if (!here.parent) return false;
      open(here.parent, here);
      return true;
    }

    function step(from, key) {
      const middle = (one) => [one.box.x + one.box.width / 2, one.box.y + one.box.height / 2];
      const [x, y] = middle(from), [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1],
        ArrowDown: [0, 1] }[key];
      let best = null, least = Infinity;
      for (const one of shown) {
        const [a, b] = middle(one), along = (a - x) * dx + (b - y) * dy;
        const across = Math.abs((a - x) * dy) + Math.abs((b - y) * dx), cost = along + 2 * across;
        if (one !== from && along > 0.5 && cost < least) { best = one; least = cost; }
      }
      return best;
    }

    function focus(one) {
      for (const other of shown) other.g.setAttribute("tabindex", other === one ? "0" : "-1");
      one.g.focus();
    }

    stage.addEventListener("keydown", (event) => {
      const from = shown.find((one) => one.g === document.activeElement);
      if (!from) return;
      let done = true;
      if (event.key.startsWith("Arrow")) { const to = step(from, event.key); if (to) focus(to); }
      else if (event.key === "Home" || event.key === "End") focus(shown.at(event.key === "Home" ? 0 : -1));
      else if (event.key === "Enter" || event.key === " ") open(from.box.node);
      else if (event.key === "Escape" || event.key === "Backspace") done = out();
      else done = false;
      if (done) event.preventDefault();
    });
    stage.addEventListener("click", (event) => {
      const g = event.target.closest("g");
      if (!g || !g.node) return;
      const node = g.node, module = node.children.length ? node : node.parent;
      if (module !== here) open(module, node);
      tell(node);
    });
    stage.addEventListener("pointerover", (event) => {
      const g = event.target.closest("g");
      if (g && g.node) tell(g.node);
    });
    stage.addEventListener("focusin", (event) => { if (event.target.node) tell(event.target.node); });
    draw();
    new ResizeObserver(() => {
      if (stage.clientWidth && Math.abs(stage.clientWidth - wide) > 1) {
        const active = shown.find((one) => one.g === document.activeElement);
        const first = draw(active && active.box.node);
        if (active && first) first.g.focus();
      }
    }).observe(stage);
  }

  for (const figure of document.querySelectorAll("[data-map]")) start(figure);

  for (const part of document.querySelectorAll("[data-filtered]")) {
    const input = part.querySelector("input"), count = part.querySelector("[role=status]");
    const rows = Array.from(part.querySelectorAll("tbody tr"));
    const texts = rows.map((row) => row.textContent.toLowerCase());
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      let found = 0;
      rows.forEach((row, k) => { row.hidden = !texts[k].includes(wanted); found += row.hidden ? 0 : 1; });
      if (wanted) part.querySelector("details").open = true;
      count.textContent = wanted ? `${found} of ${rows.length} rows` : "";
    });
    part.querySelector(".filter").hidden = false;
  }
})();
