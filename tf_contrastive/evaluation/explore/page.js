"use strict";
// All text of the data is set as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const count = data.names.length;
const byId = (id) => document.getElementById(id);
const number = (n) => n.toLocaleString("en");
const percent = (x) => `${Math.round(100 * x)} %`;
const labelled = data.classes.length > 0;
const several = data.splits.length > 1;
const PAGE = 60;

function element(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((x) => x !== null && x !== ""));
  return node;
}

const className = (label) => (label < 0 ? "no class" : data.classes[label]);
// The part that all names share tells nothing.
const shared = (() => {
  const paths = data.names.filter((n) => n.includes("/"));
  if (paths.length < 2 || paths.length < count) return 0;
  let end = paths[0].lastIndexOf("/") + 1;
  for (const path of paths) {
    while (end && path.slice(0, end) !== paths[0].slice(0, end)) {
      end = paths[0].lastIndexOf("/", end - 2) + 1;
    }
  }
  return end;
})();
const shortName = (i) => data.names[i].slice(shared);

function picture(uri, name) {
  if (!uri) return element("span", { className: "none" });
  const image = element("img", { alt: name, loading: "lazy", decoding: "async" });
  // Small images are shown pixel by pixel.
  image.addEventListener("load", () => {
    image.classList.toggle("small", image.naturalWidth <= 48);
  });
  image.src = uri;
  return image;
}

function card(i, ...lines) {
  const split = several ? data.splits[data.split[i]][0] : "";
  return element(
    "button",
    { className: "card", type: "button", title: data.names[i], onclick: () => choose(i) },
    picture(data.thumbnails[i], shortName(i)),
    labelled ? element("b", {}, className(data.labels[i])) : null,
    ...lines,
    element("span", { className: "soft" }, shortName(i)),
    several && shortName(i).indexOf(split) !== 0
      ? element("span", { className: "soft" }, split) : null,
  );
}

function neighborCard(i, cosine, label) {
  const differs = labelled && label >= 0 && data.labels[i] !== label;
  const node = card(i, element("span", {}, `cosine ${cosine.toFixed(3)}`));
  if (differs) node.querySelector("b").className = "bad";
  return node;
}

// Appends `total` nodes to a list, some at a time, when its end comes into view.
function lazily(list, total, make) {
  const end = element("div", { className: "sr" });
  let next = 0;
  const more = () => {
    const stop = Math.min(next + PAGE, total);
    while (next < stop) list.append(make(next++));
    if (next === total) { watcher.disconnect(); end.remove(); }
  };
  const watcher = new IntersectionObserver(
    (entries) => { if (entries.some((e) => e.isIntersecting)) more(); },
    { rootMargin: "600px" },
  );
  more();
  if (next < total) { list.after(end); watcher.observe(end); }
}

// ---- The chosen image -------------------------------------------------------

const exactOf = new Map();
for (const group of data.exactGroups) {
  for (const i of group.images) exactOf.set(i, group);
}
const suspectOf = new Map(data.suspects.map((s) => [s[0], s]));
let chosen = -1;

function choose(i) { location.hash = `${tab}/${i}`; }

function showChosen(focus) {
  const side = byId("detail");
  side.hidden = chosen < 0;
  document.querySelector("main").classList.toggle("open", chosen >= 0);
  side.replaceChildren();
  if (chosen < 0) return;
  const i = chosen;
  const big = picture(data.thumbnails[i], shortName(i));
  big.classList.add("big");
  const near = data.near[i];
  const missing = Math.min(data.neighbors, data.total - 1) - near.length;
  side.append(
    element("button", {
      className: "close", type: "button", "aria-label": "Close",
      onclick: () => { location.hash = tab; },
    }, "✕"),
    big,
    element("b", {}, shortName(i)),
    element("p", { className: "soft" },
      `${data.splits[data.split[i]][0]}, index ${data.indices[i]}`
      + (labelled ? `, class ${className(data.labels[i])}` : "")),
  );
  const suspect = suspectOf.get(i);
  if (suspect) side.append(element("p", { className: "bad" }, suspectText(suspect)));
  const group = exactOf.get(i);
  if (group) {
    const list = element("div", { className: "grid" });
    for (const j of group.images) if (j !== i) list.append(card(j));
    side.append(element("h2", {}, "Exact copies"), list);
  }
  const list = element("div", { className: "grid", id: "neighbors" });
  for (const [j, cosine] of near) list.append(neighborCard(j, cosine, data.labels[i]));
  side.append(element("h2", {}, "Nearest neighbours"), list);
  if (missing > 0 && data.total > count) {
    side.append(element("p", { className: "note" },
      "Further neighbours are not on this page, which has a sample."));
  }
  side.scrollTop = 0;
  if (focus) side.querySelector(".close").focus({ preventScroll: true });
}

// ---- Lists ------------------------------------------------------------------

function of(listed, total) {
  return listed < total ? `The first ${number(listed)} of ${number(total)}. ` : "";
}

function groupList(panel, groups, total, near) {
  const how = data.byPixels ? "the same pixels" : "the same embedding";
  panel.append(element("p", { className: "note" }, of(groups.length, total) + (near
    ? (data.byPixels
      ? "Images of one picture that was encoded again, resized, made brighter,"
        + " mirrored or cropped: the details of two neighbours correlate with at"
        + ` least ${data.limit}.`
      : `Neighbours of cosine ${data.limit} or more. There are no images to`
        + " compare: some may only be alike.")
    : `Images with ${how}.`)
    + " Groups across splits come first, then those of several classes."));
  const list = element("div");
  panel.append(list);
  lazily(list, groups.length, (k) => {
    const group = groups[k];
    const line = element("p", {});
    if (group.crosses) line.append(element("span", { className: "mark" }, "across splits"));
    if (group.disagrees) line.append(element("span", { className: "mark" }, "several classes"));
    line.append(`${number(group.total)} images`
      + (near ? `, ${data.likeness} ${group.likeness.toFixed(3)}` : "")
      + (group.images.length < group.total ? `, first ${group.images.length}` : ""));
    const images = element("div", { className: "grid" });
    for (const i of group.images) images.append(card(i));
    return element("div", { className: "group" }, line, images);
  });
}

function suspectText([, vote, support, missing]) {
  return `${percent(support)} of the votes are for ${className(vote)};`
    + ` ${percent(missing)} of those for its own class are missing`;
}

let pair = null;  // Classes [own, vote] to which the suspects are limited.

function suspectList(panel) {
  panel.append(element("p", { className: "note" },
    of(data.suspects.length, data.suspectsTotal)
    + `Another class has the most votes of the ${data.voters} nearest neighbours,`
    + " in which copies do not count. "
    + (data.agreement === null ? ""
      : `This holds for ${percent(1 - data.agreement)} of the labels: with a better`
        + " encoder there are fewer, and more of them are wrong.")));
  let listed = data.suspects;
  if (pair) {
    listed = listed.filter(([i, vote]) => data.labels[i] === pair[0] && vote === pair[1]);
    panel.append(element("p", { className: "bar" },
      `Only ${className(pair[0])} among ${className(pair[1])}: ${number(listed.length)}`,
      element("button", { type: "button", onclick: () => { pair = null; showTab(); } },
        "Show all")));
  }
  const list = element("div", { className: "grid" });
  panel.append(list);
  lazily(list, listed.length, (k) => card(
    listed[k][0],
    element("span", { className: "bad" },
      `neighbours: ${className(listed[k][1])} ${percent(listed[k][2])}`),
  ));
}

function outlierList(panel) {
  panel.append(element("p", { className: "note" },
    "The images with the lowest mean cosine to their nearest neighbours."));
  const list = element("div", { className: "grid" });
  panel.append(list);
  lazily(list, data.outliers.length, (k) => card(
    data.outliers[k][0],
    element("span", {}, `cosine ${data.outliers[k][1].toFixed(3)}`),
  ));
}

function classList(panel) {
  panel.append(element("p", { className: "note" },
    `Of the ${data.neighbors} nearest neighbours of a class's images, how many have`
    + " another class. Choose a pair to see its suspects."));
  const show = (own, vote) => () => { pair = [own, vote]; location.hash = "suspects"; };
  if (data.table) {
    const shares = data.classes.map(() => data.classes.map(() => 0));
    for (const [own, other, share] of data.table) shares[own][other] = share;
    const head = element("tr", {}, element("th", {}, "class"));
    for (const name of data.classes) head.append(element("th", { scope: "col" }, name));
    const body = element("tbody");
    shares.forEach((row, own) => {
      const line = element("tr", {}, element("th", { scope: "row" }, data.classes[own]));
      row.forEach((share, other) => {
        const cell = element("td", {}, share ? percent(share) : "");
        cell.style.background = `rgba(var(--heat), ${(0.55 * share).toFixed(2)})`;
        if (other !== own && share > 0) {
          cell.onclick = show(own, other);
          cell.style.cursor = "pointer";
        }
        line.append(cell);
      });
      body.append(line);
    });
    panel.append(element("div", { className: "scroll" },
      element("table", {}, element("thead", {}, head), body)));
  }
  panel.append(element("h2", {}, "Pairs that mix most"));
  const list = element("div", { className: "bar" });
  panel.append(list);
  const pairs = data.mixing.filter(([, , share]) => share >= 0.005);
  lazily(list, pairs.length, (k) => {
    const [own, other, share] = pairs[k];
    return element("button", { type: "button", onclick: show(own, other) },
      `${className(own)} → ${className(other)}: ${percent(share)}`);
  });
}

function queryList(panel) {
  lazily(panel.appendChild(element("div")), data.queries.length, (k) => {
    const query = data.queries[k];
    const list = element("div", { className: "grid" });
    list.append(element("div", { className: "card" },
      picture(query.thumbnail, query.name), element("b", {}, "query"),
      element("span", { className: "soft" }, query.name)));
    for (const [i, cosine] of query.near) list.append(neighborCard(i, cosine, -1));
    return element("div", { className: "group" }, list);
  });
}

let words = "", filterClass = -2, filterSplit = -1;

function imageList(panel) {
  const list = element("div"), found = element("p", { className: "note", role: "status" });
  const fill = () => {
    const wanted = words.toLowerCase();
    const rows = [];
    for (let i = 0; i < count; i++) {
      if (filterClass > -2 && data.labels[i] !== filterClass) continue;
      if (filterSplit >= 0 && data.split[i] !== filterSplit) continue;
      if (wanted && !data.names[i].toLowerCase().includes(wanted)) continue;
      rows.push(i);
    }
    found.textContent = `${number(rows.length)} images`
      + (data.total > count
        ? ` of the ${number(count)} on this page, a sample of ${number(data.total)}` : "");
    const grid = element("div", { className: "grid" });
    list.replaceChildren(grid);
    lazily(grid, rows.length, (k) => card(rows[k]));
  };
  const bar = element("div", { className: "bar" }, element("input", {
    type: "search", placeholder: "Part of a name", value: words,
    "aria-label": "Part of a name",
    oninput: (event) => { words = event.target.value; fill(); },
  }));
  const select = (label, names, first, value, set) => {
    const node = element("select", { "aria-label": label,
      onchange: (event) => { set(Number(event.target.value)); fill(); } });
    node.append(element("option", { value: first }, `any ${label}`));
    names.forEach((name, i) => node.append(element("option", { value: i }, name)));
    node.value = value;
    bar.append(node);
  };
  if (labelled) select("class", data.classes, -2, filterClass, (x) => { filterClass = x; });
  if (several) {
    select("split", data.splits.map((s) => s[0]), -1, filterSplit, (x) => { filterSplit = x; });
  }
  panel.append(bar, found, list);
  fill();
}

// ---- The map ----------------------------------------------------------------

const TEN = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b",
  "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"];
const color = (k, total) => (k < 0 ? "#888" : total <= 10 ? TEN[k % 10]
  : `hsl(${(k * 137.5) % 360} 65% ${45 + 12 * (k % 3)}%)`);
const points = [];
for (let i = 0; i < count; i++) if (data.places[i]) points.push(i);
const view = { x: 0, y: 0, scale: 1 };
let colorBy = labelled ? "class" : "split", hiddenKinds = new Set(), hovered = -1;
let canvas = null, tip = null, base = null;

const kindOf = (i) => (colorBy === "class" ? data.labels[i] : data.split[i]);
const kindNames = () => (colorBy === "class" ? data.classes : data.splits.map((s) => s[0]));

function fit() {
  const xs = points.map((i) => data.places[i][0]), ys = points.map((i) => data.places[i][1]);
  const span = (v) => v.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [1e9, -1e9]);
  const [x0, x1] = span(xs), [y0, y1] = span(ys);
  base = { x: (x0 + x1) / 2, y: (y0 + y1) / 2, w: x1 - x0 || 1, h: y1 - y0 || 1 };
}

function toScreen(i) {
  const { width, height } = canvas.getBoundingClientRect();
  const unit = 0.92 * Math.min(width / base.w, height / base.h) * view.scale;
  const [x, y] = data.places[i];
  return [width / 2 + (x - base.x - view.x) * unit, height / 2 - (y - base.y - view.y) * unit];
}

const thumbs = new Map();
function thumb(i) {
  if (!thumbs.has(i)) {
    const image = new Image();
    image.onload = draw;
    image.src = data.thumbnails[i];
    thumbs.set(i, image);
  }
  return thumbs.get(i);
}

let pending = 0;
function draw() {
  if (!pending) pending = requestAnimationFrame(drawNow);
}

function drawNow() {
  pending = 0;
  if (!canvas || !canvas.isConnected) return;
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const unit = 0.92 * Math.min(width / base.w, height / base.h) * view.scale;
  const total = kindNames().length, radius = points.length > 3000 ? 2.5 : 3.5;
  const inside = [];
  for (const i of points) {
    if (hiddenKinds.has(kindOf(i))) continue;
    const [x, y] = data.places[i];
    const left = width / 2 + (x - base.x - view.x) * unit;
    const top = height / 2 - (y - base.y - view.y) * unit;
    if (left < -40 || top < -40 || left > width + 40 || top > height + 40) continue;
    inside.push([i, left, top]);
  }
  const pictures = inside.length <= 150 && view.scale > 1.5;
  const byKind = new Map();
  for (const one of inside) {
    const kind = kindOf(one[0]);
    if (!byKind.has(kind)) byKind.set(kind, []);
    byKind.get(kind).push(one);
  }
  for (const [kind, some] of byKind) {
    context.fillStyle = context.strokeStyle = color(kind, total);
    context.beginPath();
    for (const [i, x, y] of some) {
      if (pictures && data.thumbnails[i] && thumb(i).complete) {
        const { naturalWidth: w, naturalHeight: h } = thumb(i);
        const s = 40 / Math.max(w, h);
        context.drawImage(thumb(i), x - w * s / 2, y - h * s / 2, w * s, h * s);
        context.lineWidth = 2;
        context.strokeRect(x - w * s / 2, y - h * s / 2, w * s, h * s);
      } else {
        context.moveTo(x + radius, y);
        context.arc(x, y, radius, 0, 7);
      }
    }
    context.fill();
  }
  for (const [i, size] of [[chosen, 9], [hovered, 7]]) {
    if (i < 0 || !data.places[i]) continue;
    const [x, y] = toScreen(i);
    context.strokeStyle = getComputedStyle(document.body).color;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, size, 0, 7);
    context.stroke();
  }
}

function nearest(x, y, reach) {
  let best = -1, least = reach * reach;
  for (const i of points) {
    if (hiddenKinds.has(kindOf(i))) continue;
    const [left, top] = toScreen(i);
    const distance = (left - x) ** 2 + (top - y) ** 2;
    if (distance < least) { least = distance; best = i; }
  }
  return best;
}

function hover(i) {
  if (i === hovered) return;
  hovered = i;
  tip.hidden = i < 0;
  if (i >= 0) {
    tip.replaceChildren(
      data.thumbnails[i] ? picture(data.thumbnails[i], shortName(i)) : "",
      labelled ? element("b", {}, className(data.labels[i])) : "",
      element("div", { className: "soft" }, shortName(i)),
    );
    const [x, y] = toScreen(i), { width } = canvas.getBoundingClientRect();
    tip.style.left = `${x + 140 > width ? Math.max(0, x - 136) : x + 12}px`;
    tip.style.top = `${Math.max(0, y - 60)}px`;
  }
  draw();
}

function zoom(factor, x, y) {
  const { width, height } = canvas.getBoundingClientRect();
  const unit = () => 0.92 * Math.min(width / base.w, height / base.h) * view.scale;
  const before = unit();
  view.scale = Math.min(200, Math.max(0.5, view.scale * factor));
  const change = 1 / before - 1 / unit();
  view.x += ((x ?? width / 2) - width / 2) * change;
  view.y -= ((y ?? height / 2) - height / 2) * change;
  hover(-1);
  draw();
}

// The next point in the direction of an arrow key.
function step(dx, dy) {
  const from = hovered >= 0 ? hovered : chosen >= 0 && data.places[chosen] ? chosen : points[0];
  const [x, y] = toScreen(from);
  let best = from, least = Infinity;
  for (const i of points) {
    if (i === from || hiddenKinds.has(kindOf(i))) continue;
    const [left, top] = toScreen(i);
    const along = (left - x) * dx + (top - y) * dy;
    const across = Math.abs((left - x) * dy) + Math.abs((top - y) * dx);
    if (along <= 0 || across > along) continue;
    if (along + across < least) { least = along + across; best = i; }
  }
  hover(best);
}

function mapPanel(panel) {
  if (!base) fit();
  const kind = data.map === "tsne" ? "t-SNE" : "the two first principal components";
  const sample = points.length < data.total
    ? `A random sample of ${number(points.length)} of ${number(data.total)} images` : "All images";
  panel.append(element("p", { className: "note" },
    `${sample}, by ${kind}. Click an image to see its neighbours. Drag and scroll`
    + " to move and zoom, or use the arrow keys and Enter; images appear when few"
    + " are in view."));
  canvas = element("canvas", { tabIndex: 0, role: "application",
    "aria-label": "Map of images: arrow keys move, Enter chooses, + and - zoom" });
  tip = element("div", { id: "tip", hidden: true, role: "status" });
  const pointers = new Map();
  let moved = false, pinch = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.onpointerdown = (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, at(event));
    moved = pointers.size > 1;
    pinch = 0;
  };
  canvas.onpointermove = (event) => {
    const [x, y] = at(event);
    const before = pointers.get(event.pointerId);
    if (!before) { hover(nearest(x, y, 12)); return; }
    if (pointers.size === 2) {
      pointers.set(event.pointerId, [x, y]);
      const [[ax, ay], [bx, by]] = [...pointers.values()];
      const length = Math.hypot(ax - bx, ay - by);
      if (pinch) zoom(length / pinch, (ax + bx) / 2, (ay + by) / 2);
      pinch = length;
      return;
    }
    if (!moved && Math.hypot(x - before[0], y - before[1]) < 4) return;
    moved = true;
    const { width, height } = canvas.getBoundingClientRect();
    const unit = 0.92 * Math.min(width / base.w, height / base.h) * view.scale;
    view.x -= (x - before[0]) / unit;
    view.y += (y - before[1]) / unit;
    pointers.set(event.pointerId, [x, y]);
    hover(-1);
    draw();
  };
  canvas.onpointerup = (event) => {
    const [x, y] = at(event);
    pointers.delete(event.pointerId);
    if (moved) return;
    const i = nearest(x, y, event.pointerType === "touch" ? 24 : 12);
    if (i >= 0) choose(i);
  };
  canvas.onpointercancel = (event) => pointers.delete(event.pointerId);
  canvas.onpointerleave = () => hover(-1);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), ...at(event));
  }, { passive: false });
  canvas.onkeydown = (event) => {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (arrows[event.key]) step(...arrows[event.key]);
    else if (event.key === "Enter" && hovered >= 0) choose(hovered);
    else if (event.key === "+") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else return;
    event.preventDefault();
  };
  const button = (text, label, act) => element("button",
    { type: "button", "aria-label": label, onclick: act }, text);
  const bar = element("div", { className: "bar" },
    button("+", "Zoom in", () => zoom(1.5)),
    button("−", "Zoom out", () => zoom(1 / 1.5)),
    button("Reset", "Reset the view", () => {
      Object.assign(view, { x: 0, y: 0, scale: 1 });
      draw();
    }));
  const legend = element("div", { className: "legend" });
  const fill = () => {
    legend.replaceChildren();
    const names = kindNames();
    names.forEach((name, k) => {
      const dot = element("span", { className: "dot" });
      dot.style.background = color(k, names.length);
      legend.append(element("button", {
        type: "button", "aria-pressed": String(!hiddenKinds.has(k)),
        onclick: (event) => {
          if (!hiddenKinds.delete(k)) hiddenKinds.add(k);
          event.currentTarget.setAttribute("aria-pressed", String(!hiddenKinds.has(k)));
          draw();
        },
      }, dot, name));
    });
  };
  if (labelled && several) {
    const select = element("select", { "aria-label": "Colors",
      onchange: (event) => {
        colorBy = event.target.value;
        hiddenKinds = new Set();
        fill();
        draw();
      } });
    select.append(element("option", { value: "class" }, "colors: class"),
      element("option", { value: "split" }, "colors: split"));
    select.value = colorBy;
    bar.append(select);
  }
  if (labelled || several) fill();
  panel.append(bar, element("div", { className: "mapbox" }, canvas, tip), legend);
  new ResizeObserver(draw).observe(canvas);
  draw();
}

// ---- Tabs -------------------------------------------------------------------

const TABS = {
  map: ["Map", mapPanel, points.length],
  suspects: [`Suspect labels ${number(data.suspectsTotal || 0)}`, suspectList, data.suspects.length],
  exact: [`Exact copies ${number(data.exactTotal)}`,
    (panel) => groupList(panel, data.exactGroups, data.exactTotal, false), data.exactTotal],
  near: [`Near copies ${number(data.nearTotal)}`,
    (panel) => groupList(panel, data.nearGroups, data.nearTotal, true), data.nearTotal],
  outliers: ["Outliers", outlierList, data.outliers.length],
  classes: ["Classes", classList, labelled],
  queries: [`Queries ${number(data.queries.length)}`, queryList, data.queries.length],
  images: ["Images", imageList, count],
};
let tab = "";

function showTab() {
  for (const button of byId("tabs").children) {
    const selected = button.dataset.tab === tab;
    button.setAttribute("aria-selected", String(selected));
    button.tabIndex = selected ? 0 : -1;
  }
  hovered = -1;
  canvas = null;
  byId("panel").replaceChildren();
  TABS[tab][1](byId("panel"));
}

function follow() {
  const [name, image] = location.hash.slice(1).split("/");
  const next = Object.hasOwn(TABS, name) && TABS[name][2] ? name
    : data.queries.length ? "queries" : "map";
  const i = image === undefined ? -1 : Number(image);
  const before = chosen;
  chosen = Number.isInteger(i) && i >= 0 && i < count ? i : -1;
  if (next !== tab) { tab = next; showTab(); }
  if (chosen !== before) showChosen(document.activeElement?.closest(".card, aside"));
  draw();
}

for (const [name, [title, , present]] of Object.entries(TABS)) {
  if (!present) continue;
  byId("tabs").append(element("button", {
    type: "button", role: "tab", "data-tab": name,
    onclick: () => { pair = null; if (tab === "suspects") tab = ""; location.hash = name; follow(); },
  }, title));
}
byId("tabs").onkeydown = (event) => {
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const all = [...byId("tabs").children];
  if (!move) return;
  const next = all[(all.indexOf(document.activeElement) + move + all.length) % all.length];
  next.focus();
  next.click();
};
addEventListener("hashchange", follow);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen >= 0) location.hash = tab;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
byId("title").textContent = data.title;
byId("summary").textContent = [
  `${number(data.total)} images`,
  ...(several ? data.splits.map(([name, n]) => `${name} ${number(n)}`) : [data.splits[0][0]]),
  labelled ? `${data.classes.length} classes` : "no labels",
  "neighbours by cosine",
].join(" · ");
follow();
