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
const MATCHES = 300;

function element(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children.filter(Boolean));
  return node;
}

function picture(uri, name) {
  return element("img", { alt: name, loading: "lazy", src: uri });
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

function grid(cards) {
  return element("div", { className: "grid" }, ...cards);
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
  const suspect = suspects.get(chosen);
  side.append(
    close, picture(image.thumbnail, image.name), element("b", {}, image.name),
    element("p", { className: "soft" },
      `${image.split}, index ${image.index}`
      + (hasClasses ? `, ${className(image)}` : "")),
    suspect ? element("p", { className: "bad" },
      `${percent(suspect.support)} of the votes are for ${suspect.vote}`) : "",
    element("h2", {}, "Nearest neighbours"),
    grid(near.map(([other, k]) => card(
      other, `cosine ${image.cosines[k].toFixed(3)}`,
      image.class !== null && ![null, image.class].includes(other.class),
    ))),
  );
}

// ---- Lists ------------------------------------------------------------------

function group(images, ...line) {
  return element("div", { className: "group" },
    element("p", {}, ...line.filter(Boolean)), grid(images));
}

function groupList(panel, name, text) {
  const mark = (words) => element("span", { className: "mark" }, words);
  panel.append(note(firstOf(name), text, "Groups across splits come first."));
  panel.append(...data[name].map((copies) => {
    return group(
      copies.images.map((image) => card(image)),
      copies.across_splits && mark("across splits, "),
      copies.classes_differ && mark("several classes, "),
      `${number(copies.total)} images`,
      copies.correlation && `, alike by ${copies.correlation.toFixed(3)}`,
      copies.images.length < copies.total && ", some of which are here",
    );
  }));
}

function exactList(panel) {
  groupList(panel, "exact_duplicates", "Images of equal pixels.");
}

function nearList(panel) {
  groupList(panel, "near_duplicates",
    "One picture, encoded again, resized, brighter, mirrored or cropped.");
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
  panel.append(grid(data.suspects.map((item) => card(
    item, `neighbours: ${item.vote} ${percent(item.support)}`, true,
  ))));
}

function outlierList(panel) {
  panel.append(note(firstOf("outliers"),
    "The lowest mean cosines to the nearest neighbours come first."));
  panel.append(grid(data.outliers.map((item) => (
    card(item, `cosine ${item.cosine.toFixed(3)}`)))));
}

function queryList(panel) {
  panel.append(...data.queries.map((query) => group([
    element("div", { className: "card" }, picture(query.thumbnail, query.name)),
    ...query.neighbors.map((image) => (
      card(image, `cosine ${image.cosine.toFixed(3)}`))),
  ], query.name)));
}

function imageList(panel) {
  const box = element("div", {});
  const label = "Part of a name, class or split";
  const search = element("input", {
    type: "search", placeholder: label, ariaLabel: label,
  });
  search.oninput = () => {
    const words = search.value.toLowerCase();
    const shown = data.neighbors.filter((image) => (
      `${image.name}\n${className(image)}\n${image.split}`
        .toLowerCase().includes(words)));
    box.replaceChildren(
      note(`${number(shown.length)} images, the first ${MATCHES} of which are`,
        "shown."),
      grid(shown.slice(0, MATCHES).map((image) => card(image))));
  };
  panel.append(search, box);
  search.oninput();
}

// ---- The map ----------------------------------------------------------------

const kinds = hasClasses ? data.classes : splits;
const points = data.map.ids.map((id, k) => {
  const image = images.get(id), [x, y] = data.map.places[k];
  return { image, x, y, kind: hasClasses ? image.class : image.split };
});
const color = new Map(kinds.map((kind, k) => (
  [kind, `hsl(${(k * 137.5) % 360} 65% ${45 + 12 * (k % 3)}%)`])));
let canvas = null;

// Places are within 0.5 of the middle.
function toScreen({ x, y }) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const side = Math.min(width, height) - 30;
  return [width / 2 + side * x, height / 2 - side * y];
}

function draw() {
  if (!canvas?.isConnected) return;
  canvas.width = canvas.clientWidth * devicePixelRatio;
  canvas.height = canvas.clientHeight * devicePixelRatio;
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  const text = getComputedStyle(canvas).color;
  const ring = (point, radius) => {
    context.beginPath();
    context.arc(...toScreen(point), radius, 0, 7);
    context.stroke();
  };
  for (const point of points) {
    // Images without a class are rings, which no class is.
    context.strokeStyle = context.fillStyle = color.get(point.kind) ?? text;
    ring(point, 3);
    if (color.has(point.kind)) context.fill();
  }
  context.strokeStyle = text;
  points.filter((point) => point.image.id === chosen)
    .forEach((point) => ring(point, 9));
}

function nearest(event) {
  let best = null, least = 15;
  for (const point of points) {
    const [x, y] = toScreen(point);
    const distance = Math.hypot(x - event.offsetX, y - event.offsetY);
    if (distance < least) [best, least] = [point, distance];
  }
  return best;
}

function legend() {
  const some = points.some((point) => point.kind === null) ? [null] : [];
  const all = [...kinds, ...some].slice(0, 60);
  return element("div", { className: "legend" }, ...all.map((kind) => {
    const dot = element("span", { className: "dot" });
    dot.style.background = color.get(kind) ?? "none";
    return element("span", {}, dot, kind ?? "no class");
  }));
}

function mapPanel(panel) {
  panel.append(note(
    `${number(points.length)} of ${number(data.images)} images, by`
    + ` ${data.map.by}. Click an image to see its neighbours.`));
  canvas = element("canvas", {
    ariaLabel: "Map of images",
    onclick: (event) => {
      const point = nearest(event);
      if (point) choose(point.image.id);
    },
  });
  panel.append(element("div", { className: "map" }, canvas), legend());
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
byId("title").textContent = data.title;
byId("summary").textContent = `${number(data.images)} images of`
  + ` ${splits.join(" and ")}, ${data.classes.length} classes`;
follow();
