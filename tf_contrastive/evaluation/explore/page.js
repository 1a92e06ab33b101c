"use strict";
// All text of the data is set as text, never as HTML.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const images = new Map(data.neighbors.map((image) => [image.id, image]));
const splits = Object.keys(data.splits);
const suspects = new Map(data.suspects.map((item) => [item.id, item]));
const hasClasses = data.classes.length > 0;
const className = (image) => image.class ?? "no class";
const number = (n) => n.toLocaleString("en");
const percent = (x) => `${Math.round(100 * x)} %`;
const AT_A_TIME = 120;

function element(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children.filter(Boolean));
  return node;
}

function picture(uri, name) {
  if (!uri) return element("span", { className: "none" });
  const image = element("img", { alt: name, loading: "lazy" });
  // Small images are shown pixel by pixel.
  image.onload = () => {
    image.classList.toggle("small", image.naturalWidth <= 48);
  };
  image.src = uri;
  return image;
}

function card(image, note, isBad) {
  return element(
    "button",
    { className: "card", title: image.name, onclick: () => choose(image.id) },
    picture(images.get(image.id).thumbnail, image.name),
    hasClasses && element("b", {}, className(image)),
    note && element("span", { className: isBad ? "bad" : "" }, note),
    element("span", { className: "soft" }, image.name.split("/").pop()),
    splits.length > 1 && element("span", { className: "soft" }, image.split),
  );
}

function note(...texts) {
  return element("p", { className: "note" }, texts.join(" "));
}

// A list of nodes, some at a time.
function list(items, make, className) {
  const box = element("div", { className });
  const more = element("button", {}, "Show more");
  const fill = () => {
    const next = box.childElementCount;
    box.append(...items.slice(next, next + AT_A_TIME).map(make));
    more.hidden = box.childElementCount >= items.length;
  };
  more.onclick = fill;
  fill();
  return element("div", {}, box, more);
}

function firstOf(name) {
  const [some, total] = [data[name].length, data.totals[name]];
  return some < total ? `The first ${number(some)} of ${number(total)}.` : "";
}

// ---- The chosen image -------------------------------------------------------

let tab = "", chosen = -1;

function choose(id) { location.hash = `${tab}/${id}`; }

function showChosen() {
  const side = byId("detail");
  const image = images.get(chosen);
  side.hidden = !image;
  byId("main").classList.toggle("open", !side.hidden);
  side.replaceChildren();
  if (!image) return;
  const near = image.neighbors.map((id, k) => [images.get(id), k])
    .filter(([other]) => other);
  const close = element("button", {
    className: "close", ariaLabel: "Close",
    onclick: () => { location.hash = tab; },
  }, "✕");
  const big = picture(image.thumbnail, image.name);
  big.classList.add("big");
  const suspect = suspects.get(chosen);
  side.append(
    close, big, element("b", {}, image.name),
    element("p", { className: "soft" },
      `${image.split}, index ${image.index}`
      + (hasClasses ? `, ${className(image)}` : "")),
    suspect ? element("p", { className: "bad" },
      `${percent(suspect.support)} of the votes are for ${suspect.vote};`
      + ` ${percent(suspect.missing)} of those for its own class are missing`)
      : "",
    element("h2", {}, "Nearest neighbours"),
    near.length < image.neighbors.length
      ? note("Only those that are on this page.") : "",
    list(near, ([other, k]) => card(
      other, `cosine ${image.cosines[k].toFixed(3)}`,
      image.class !== null && ![null, image.class].includes(other.class),
    ), "grid"),
  );
  side.scrollTop = 0;
}

// ---- Lists ------------------------------------------------------------------

function group(images, ...line) {
  const cards = element("div", { className: "grid" });
  cards.append(...images);
  return element("div", { className: "group" },
    element("p", {}, ...line.filter(Boolean)), cards);
}

function groupList(panel, name, text) {
  const mark = (words) => element("span", { className: "mark" }, words);
  panel.append(note(firstOf(name), text, "Groups across splits come first."));
  panel.append(list(data[name], (copies) => {
    const likeness = copies.correlation ?? copies.cosine;
    return group(
      copies.images.map((image) => card(image)),
      copies.across_splits && mark("across splits"),
      copies.classes_differ && mark("several classes"),
      `${number(copies.total)} images`,
      likeness && `, alike by ${likeness.toFixed(3)}`,
      copies.images.length < copies.total && ", some of which are here",
    );
  }));
}

function exactList(panel) {
  groupList(panel, "exact_duplicates", `Images of equal ${data.copies_by}.`);
}

function nearList(panel) {
  groupList(panel, "near_duplicates", data.copies_by === "pixels"
    ? "One picture that was encoded again, resized, made brighter, mirrored or"
      + " cropped: the details of neighbours correlate by at least"
      + ` ${data.near_correlation}.`
    : `Neighbours of cosine ${data.near_cosine} or more. There are no images`
      + " to compare: some may only be alike.");
}

function suspectList(panel) {
  panel.append(note(
    firstOf("suspects"),
    `Another class has the most votes of the ${data.voters} nearest`,
    "neighbours, in which copies do not count.",
    data.agreement === null ? ""
      : `This holds for ${percent(1 - data.agreement)} of the labels: with a`
        + " better encoder there are fewer, and more of them are wrong.",
  ));
  panel.append(list(data.suspects, (item) => card(
    item, `neighbours: ${item.vote} ${percent(item.support)}`, true,
  ), "grid"));
}

function outlierList(panel) {
  panel.append(note(firstOf("outliers"),
    "The lowest mean cosines to the nearest neighbours come first."));
  panel.append(list(data.outliers, (item) => (
    card(item, `cosine ${item.cosine.toFixed(3)}`)), "grid"));
}

function queryList(panel) {
  panel.append(list(data.queries, (query) => group([
    element("div", { className: "card" }, picture(query.thumbnail, query.name)),
    ...query.neighbors.map((image) => (
      card(image, `cosine ${image.cosine.toFixed(3)}`))),
  ], query.name)));
}

function imageList(panel) {
  const counted = note(), box = element("div", {});
  const label = "Part of a name, class or split";
  const search = element("input", {
    type: "search", placeholder: label, ariaLabel: label,
  });
  search.oninput = () => {
    const words = search.value.toLowerCase();
    const shown = data.neighbors.filter((image) => (
      `${image.name}\n${className(image)}\n${image.split}`
        .toLowerCase().includes(words)));
    counted.textContent = `${number(shown.length)} of the`
      + ` ${number(images.size)} images on this page`
      + (images.size < data.images
        ? `, which has a sample of ${number(data.images)}` : "");
    box.replaceChildren(list(shown, (image) => card(image), "grid"));
  };
  panel.append(search, counted, box);
  search.oninput();
}

// ---- The map ----------------------------------------------------------------

const COLORS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd",
  "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#ffd92f"];
const IN_LEGEND = 60;
const kinds = hasClasses ? data.classes : splits;
const points = data.map.ids.map((id, k) => {
  const image = images.get(id), [x, y] = data.map.places[k];
  return { image, x, y, kind: hasClasses ? image.class : image.split };
});
const [wide, high] = [0, 1].map((axis) => data.map.places.reduce(
  (most, place) => Math.max(most, 2 * Math.abs(place[axis])), 1e-3));
const color = new Map(kinds.map((kind, k) => [kind, kinds.length <= 10
  ? COLORS[k] : `hsl(${(k * 137.5) % 360} 65% ${45 + 12 * (k % 3)}%)`]));
const hidden = new Set();
let canvas = null, tip = null, scale = 1;

function toScreen({ x, y }) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const side = Math.min((width - 30) / wide, (height - 30) / high);
  return [width / 2 + side * x, height / 2 - side * y];
}

function draw() {
  if (!canvas?.isConnected) return;
  // A larger canvas would exceed the browser's limits.
  const ratio = scale > 1 ? 1 : devicePixelRatio;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const context = canvas.getContext("2d");
  const text = getComputedStyle(canvas).color;
  context.scale(ratio, ratio);
  const radius = points.length > 3000 ? 2.5 : 3.5;
  for (const point of points) {
    if (hidden.has(point.kind)) continue;
    context.beginPath();
    context.arc(...toScreen(point), radius, 0, 7);
    // Images without a class are rings, which no class is.
    context.strokeStyle = context.fillStyle = color.get(point.kind) ?? text;
    if (color.has(point.kind)) context.fill();
    else context.stroke();
  }
  const own = points.find((point) => point.image.id === chosen);
  if (!own) return;
  context.beginPath();
  context.arc(...toScreen(own), 9, 0, 7);
  context.strokeStyle = text;
  context.lineWidth = 2;
  context.stroke();
}

function nearest(event) {
  let best = null, least = 15;
  for (const point of points) {
    if (hidden.has(point.kind)) continue;
    const [x, y] = toScreen(point);
    const distance = Math.hypot(x - event.offsetX, y - event.offsetY);
    if (distance < least) [best, least] = [point, distance];
  }
  return best;
}

function hover(event) {
  const point = nearest(event);
  tip.hidden = !point;
  if (!point) return;
  const { image } = point;
  tip.replaceChildren(
    picture(image.thumbnail, image.name),
    element("b", {}, hasClasses ? className(image) : ""),
    element("div", { className: "soft" }, image.name.split("/").pop()));
  const [x, y] = toScreen(point);
  tip.style.left = `${Math.max(0, x > 150 ? x - 136 : x + 12)}px`;
  tip.style.top = `${Math.max(0, y - 60)}px`;
}

// The canvas grows, and its box scrolls.
function zoom(factor) {
  const box = canvas.parentElement;
  const x = (box.scrollLeft + box.clientWidth / 2) * factor;
  const y = (box.scrollTop + box.clientHeight / 2) * factor;
  scale *= factor;
  canvas.style.width = canvas.style.height = `${100 * scale}%`;
  box.scrollTo(x - box.clientWidth / 2, y - box.clientHeight / 2);
  tip.hidden = true;
}

function legend() {
  const box = element("div", { className: "legend" });
  const some = points.some((point) => point.kind === null) ? [null] : [];
  if (kinds.length + some.length < 2 || kinds.length > IN_LEGEND) return box;
  for (const kind of [...kinds, ...some]) {
    const dot = element("span", { className: "dot" });
    dot.style.background = color.get(kind) ?? "none";
    box.append(element("button", {
      ariaPressed: String(!hidden.has(kind)),
      onclick: ({ currentTarget }) => {
        if (!hidden.delete(kind)) hidden.add(kind);
        currentTarget.ariaPressed = String(!hidden.has(kind));
        draw();
      },
    }, dot, kind ?? "no class"));
  }
  return box;
}

function mapPanel(panel) {
  panel.append(note(
    points.length < data.images
      ? `A random sample of ${number(points.length)} of`
        + ` ${number(data.images)} images, by ${data.map.by}.`
      : `All images, by ${data.map.by}.`,
    "Click an image to see its neighbours."));
  canvas = element("canvas", {
    ariaLabel: "Map of images",
    onmousemove: hover,
    onmouseleave: () => { tip.hidden = true; },
    onclick: (event) => {
      const point = nearest(event);
      if (point) choose(point.image.id);
    },
  });
  tip = element("div", { id: "tip", hidden: true });
  scale = 1;
  panel.append(
    element("div", { className: "bar" },
      element("button", { onclick: () => zoom(scale < 4 ? 2 : 1) }, "Zoom in"),
      element("button", { onclick: () => zoom(scale > 1 ? 0.5 : 1) },
        "Zoom out")),
    element("div", { className: "map" }, canvas, tip),
    legend());
  new ResizeObserver(draw).observe(canvas);
}

// ---- Tabs -------------------------------------------------------------------

const TABS = {
  map: ["Map", mapPanel, points.length],
  suspects: ["Suspect labels", suspectList, data.totals.suspects],
  exact: ["Exact copies", exactList, data.totals.exact_duplicates],
  near: ["Near copies", nearList, data.totals.near_duplicates],
  outliers: ["Outliers", outlierList, data.totals.outliers],
  queries: ["Queries", queryList, data.queries.length],
  images: ["Images", imageList, images.size],
};

function follow() {
  const [name, id] = location.hash.slice(1).split("/");
  const first = data.queries.length ? "queries" : "map";
  const next = Object.hasOwn(TABS, name) && TABS[name][2] ? name : first;
  chosen = id === undefined ? -1 : Number(id);
  if (next !== tab) {
    tab = next;
    for (const link of byId("tabs").children) {
      link.ariaCurrent = link.hash === `#${tab}` ? "page" : null;
    }
    byId("panel").replaceChildren();
    TABS[tab][1](byId("panel"));
  }
  showChosen();
  draw();
}

for (const [name, [title, , total]] of Object.entries(TABS)) {
  if (!total) continue;
  const count = name === "map" ? "" : ` ${number(total)}`;
  byId("tabs").append(
    element("a", { href: `#${name}` }, `${title}${count}`));
}
addEventListener("hashchange", follow);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen >= 0) location.hash = tab;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
byId("title").textContent = data.title;
byId("summary").textContent = [
  `${number(data.images)} images`,
  ...Object.entries(data.splits).map(([name, n]) => `${name} ${number(n)}`),
  hasClasses ? `${data.classes.length} classes` : "no labels",
].join(" · ");
follow();
