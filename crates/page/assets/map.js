// The nodes by zone and their pods: one element per node and one per pod, updated only when it changes.
import { age, element } from "./parts.js";
import { repairClass, repairWords } from "./repairs.js";
import { world } from "./world.js";

const zones = new Map();
const tiles = new Map();
const cells = new Map();
/** Tiles whose label may be stale. */
const touched = new Set();
const area = document.getElementById("zones");
const queue = document.getElementById("queue");
const queued = { cells: [], box: queue.querySelector(".pods") };
const order = new Intl.Collator("en", { numeric: true }).compare;

/** Inserts an element into a sorted list and at the same place into its box. */
function insert(list, item, box) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (order(list[middle].key, item.key) <= 0) low = middle + 1;
    else high = middle;
  }
  box.insertBefore(item.element, list[low]?.element ?? null);
  list.splice(low, 0, item);
}

function remove(list, item) {
  const at = list.indexOf(item);
  if (at >= 0) list.splice(at, 1);
  item.element.remove();
}

export function drawMap(changes) {
  if (changes.reset) clear();
  for (const name of changes.nodes) drawNode(name);
  for (const [uid, pod] of changes.pods) drawPod(uid, pod, changes.reset);
  const size = tiles.size > 240 ? "dense" : tiles.size > 60 ? "medium" : "";
  if (area.className !== size) area.className = size;
  for (const zone of zones.values()) drawZone(zone);
  for (const tile of touched) describe(tile);
  touched.clear();
  queue.hidden = queued.cells.length === 0;
  queue.querySelector("h2 span").textContent = queued.cells.length;
  keepOneTabStop();
}

function clear() {
  area.replaceChildren();
  queued.box.replaceChildren();
  queued.cells = [];
  for (const known of [zones, tiles, cells]) known.clear();
}

function zoneOf(name) {
  let zone = zones.get(name);
  if (!zone) {
    const section = element("section", "zone");
    const heading = element("h2", "", name === "" ? "No zone" : `Zone ${name}`);
    const count = element("span");
    heading.append(count);
    const box = element("div", "tiles");
    section.append(heading, box);
    zone = { key: name, element: section, box, count, tiles: [] };
    zones.set(name, zone);
    const list = [...zones.values()].filter((z) => z !== zone).sort((a, b) => order(a.key, b.key));
    insert(list, zone, area);
  }
  return zone;
}

function drawZone(zone) {
  if (zone.tiles.length === 0) {
    zone.element.remove();
    zones.delete(zone.key);
    return;
  }
  const lost = zone.tiles.filter((t) => world.nodes.get(t.key)?.state === "unreachable").length;
  const all = `${zone.tiles.length} ${zone.tiles.length === 1 ? "node" : "nodes"}`;
  const text = lost === 0 ? all : `${all}, ${lost} unreachable`;
  if (zone.count.textContent !== text) zone.count.textContent = text;
}

function drawNode(name) {
  const node = world.nodes.get(name);
  let tile = tiles.get(name);
  if (tile && (!node || tile.zone.key !== node.zone)) {
    remove(tile.zone.tiles, tile);
    tiles.delete(name);
    tile = undefined;
  }
  if (!node) return;
  if (!tile) {
    const button = element("button", "node");
    button.type = "button";
    button.tabIndex = -1;
    const label = element("span", "name");
    label.append(element("span", "", name));
    const box = element("span", "pods");
    const note = element("span", "note");
    button.append(label, box, note);
    button.title = name;
    tile = { key: name, element: button, box, note, cells: [], zone: zoneOf(node.zone), wished: null };
    button.tile = tile;
    tiles.set(name, tile);
    insert(tile.zone.tiles, tile, tile.zone.box);
    for (const cell of cells.values()) {
      if (cell.node === name) insert(tile.cells, cell, tile.box);
    }
  }
  if (tile.state !== node.state) tile.wished = null;
  tile.state = node.state;
  dress(tile);
}

function dress(tile) {
  const node = world.nodes.get(tile.key);
  if (!node) return;
  const pressed = tile.element.getAttribute("aria-pressed") ?? "false";
  tile.element.className = `node ${node.state}${repairClass(node)}${tile.wished ? " wished" : ""}`;
  tile.element.setAttribute("aria-pressed", pressed);
  const note = noteOf(node, tile.wished);
  tile.note.textContent = note;
  describe(tile);
}

/** Updates the accessible label of the tile. */
function describe(tile) {
  const node = world.nodes.get(tile.key);
  if (!node) return;
  const pods = tile.cells.length === 1 ? "1 pod" : `${tile.cells.length} pods`;
  const label = `Node ${node.name}, ${stateWords(node)}, ${pods}`;
  if (tile.label === label) return;
  tile.label = label;
  tile.element.setAttribute("aria-label", label);
}

/** Shows a pod on its node, or in the queue if it has none. */
function place(cell) {
  const tile = tiles.get(cell.node);
  if (tile) {
    insert(tile.cells, cell, tile.box);
    touched.add(tile);
  } else if (!cell.node) insert(queued.cells, cell, queued.box);
}

function takeAway(uid, cell) {
  const tile = tiles.get(cell.node);
  remove(tile?.cells ?? queued.cells, cell);
  if (tile) touched.add(tile);
  cells.delete(uid);
}

function noteOf(node, wished) {
  if (wished && node.state === "ready") return wished;
  if (node.state === "unreachable") return `unreachable for ${age(node.since)}`;
  if (node.state === "notready") return "NotReady";
  if (node.outOfService) return "out-of-service";
  return repairWords(node) || (node.cordoned ? "cordoned" : "");
}

export function stateWords(node) {
  const words = { ready: "Ready", notready: "NotReady", unreachable: `unreachable for ${age(node.since)}` };
  const repair = repairWords(node);
  return words[node.state] + (node.outOfService ? ", tainted out-of-service" : "") + (node.cordoned ? ", cordoned" : "")
    + (repair ? `, ${repair}` : "");
}

/** Shows a click on a node immediately: the control plane notices the fault later. */
export function markWished(name, words) {
  const tile = tiles.get(name);
  if (!tile) return;
  tile.wished = words;
  dress(tile);
}

function drawPod(uid, pod, silently) {
  let cell = cells.get(uid);
  if (cell && (!pod || cell.node !== pod.node)) {
    takeAway(uid, cell);
    cell = undefined;
  }
  if (!pod) return;
  // A finished pod uses no resources of a node, and a failed pod without a node never gets one.
  if (pod.state === "succeeded" || (pod.state === "failed" && !pod.node)) {
    if (cell) takeAway(uid, cell);
    return;
  }
  if (!cell) {
    const key = `${pod.workload.kind} ${pod.workload.name} ${pod.name}`;
    cell = { key, node: pod.node, element: element("i") };
    cells.set(uid, cell);
    place(cell);
    cell.element.title = `${pod.namespace}/${pod.name}`;
    cell.fresh = silently ? "" : " new";
  }
  const kind = ["Job", "StatefulSet"].includes(pod.workload.kind) ? pod.workload.kind : "Deployment";
  cell.element.className = `pod ${pod.state} ${kind}${cell.fresh}`;
}

/** Silent nodes show for how long, and sick nodes until when they are tolerated. */
export function tickMap() {
  for (const tile of tiles.values()) {
    const node = world.nodes.get(tile.key);
    if (!node || (tile.state !== "unreachable" && !repairWords(node))) continue;
    tile.note.textContent = noteOf(node, null);
    describe(tile);
  }
}

// ---- the keyboard: one tab stop, arrows from there --------------------------------------------

let stop = null;

function keepOneTabStop() {
  if (stop && tiles.get(stop.key) === stop) return;
  stop = null;
  const first = area.querySelector(".node");
  if (first) moveStop(first.tile);
}

function moveStop(tile) {
  if (stop) stop.element.tabIndex = -1;
  stop = tile;
  stop.element.tabIndex = 0;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** The nearest tile up or down. Left and right follow the reading order. */
function neighbour(tile, [x, y]) {
  const all = [...area.querySelectorAll(".node")];
  const here = all.indexOf(tile.element);
  if (x !== 0) return all[here + x]?.tile;
  const from = tile.element.getBoundingClientRect();
  let best;
  for (const other of y > 0 ? all.slice(here + 1) : all.slice(0, here).reverse()) {
    const to = other.getBoundingClientRect();
    const rows = (to.top - from.top) * y;
    if (rows < from.height / 2) continue;
    if (best && rows > best.rows + from.height / 2) break;
    const aside = Math.abs(to.left - from.left);
    if (!best || aside < best.aside) best = { rows, aside, tile: other.tile };
  }
  return best?.tile;
}

export function nodeMap(open) {
  area.addEventListener("click", (event) => {
    const tile = event.target.closest(".node")?.tile;
    if (!tile) return;
    moveStop(tile);
    open(tile.key);
  });
  area.addEventListener("keydown", (event) => {
    const direction = ARROWS[event.key];
    const tile = event.target.closest(".node")?.tile;
    if (!direction || !tile) return;
    event.preventDefault();
    const next = neighbour(tile, direction);
    if (!next) return;
    moveStop(next);
    next.element.focus();
  });
}

/** Marks only the node whose details are shown. */
export function press(name) {
  area.querySelector('[aria-pressed="true"]')?.setAttribute("aria-pressed", "false");
  tiles.get(name)?.element.setAttribute("aria-pressed", "true");
}

export function focusNode(name) {
  tiles.get(name)?.element.focus();
}
