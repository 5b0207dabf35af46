// Everything beside the map: headline, counts, one node, stuck pods, workloads, timeline.
import { focusNode, markWished, press, stateWords, tickMap } from "./map.js";
import { drawMissing } from "./missing.js";
import { clock, element, waiting } from "./parts.js";
import { drawRepairs } from "./repairs.js";
import { now, wish, world } from "./world.js";
import { drawWrappers } from "./wrappers.js";

const MOST_CASES = 40;
const MOST_WORK = 8;
const MOST_MOMENTS = 120;
const MOST_SAMPLES = 300;

const find = (selector) => document.querySelector(selector);
const plural = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
const isAre = (count, one, many) => `${plural(count, one, many)} ${count === 1 ? "is" : "are"}`;

let shown = null;
let tally = {};

/** `isNew` means that the whole state was replaced: what was drawn before may belong to another time. */
export function drawPanels(isNew) {
  tally = count();
  drawHeadline();
  drawStory();
  drawCounts();
  drawMissing();
  drawNodePanel();
  drawCases();
  drawRepairs();
  drawWrappers();
  drawWork();
  drawMoments(isNew);
  if (isNew && shown) press(shown);
}

/** Updates clocks and countdowns. Called twice a second. */
export function tick() {
  if (!world.connected || world.nodes.size === 0) return;
  const { speed } = world.hello;
  find("#clock").textContent = speed === 1 || world.hello.replay ? time(now()) : `${speed}× · ${time(now())}`;
  tickMap();
  if (!world.hello.replay) sample();
  for (const item of document.querySelectorAll("[data-until]")) {
    item.textContent = waiting(Number(item.dataset.until));
  }
  if (shown) drawNodeState();
}

/** The time of day; in a replay, the time since its beginning. */
function time(at) {
  if (world.began !== null) return clock(Math.max(0, at - world.began));
  return new Date(at).toLocaleTimeString("en-GB");
}

function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

function count() {
  const of = { ready: 0, lost: 0 };
  for (const node of world.nodes.values()) {
    if (node.state === "ready") of.ready += 1;
    if (node.state === "unreachable") of.lost += 1;
  }
  for (const pod of world.pods.values()) of[pod.state] = (of[pod.state] ?? 0) + 1;
  return of;
}

function drawHeadline() {
  const headline = find("#headline");
  const { lost, stuck = 0 } = tally;
  document.body.classList.toggle("away", !world.connected && world.nodes.size > 0);
  let text;
  if (!world.connected) text = world.nodes.size > 0 ? "The connection to Salvor was lost. Trying again…" : "Connecting…";
  else if (world.nodes.size === 0) text = "No nodes yet.";
  else if (lost === 0 && stuck === 0) text = `${plural(world.nodes.size, "node", "nodes")}, none unreachable. No pod is stuck.`;
  else {
    const nodes = lost > 0 ? `${isAre(lost, "node", "nodes")} unreachable. ` : "";
    text = nodes + (stuck > 0 ? `${isAre(stuck, "pod", "pods")} stuck.` : "No pod is stuck.");
  }
  setText(headline, text);
  headline.classList.toggle("bad", lost > 0 || stuck > 0);
  const paused = find("#paused");
  paused.hidden = !world.paused;
  setText(paused, world.paused ? `Salvor is ${world.paused}. It recovers nothing until somebody runs: salvor resume` : "");
}

function drawStory() {
  const story = find("#story");
  story.hidden = !world.caption;
  if (!world.caption) return;
  const { title, text, chapter, chapters } = world.caption;
  setText(story.querySelector("h2"), title);
  setText(story.querySelector("p"), text);
  const steps = Array.from({ length: chapters }, (_, i) =>
    element("i", i + 1 < chapter ? "past" : i + 1 === chapter ? "now" : ""));
  story.querySelector(".progress").hidden = chapters < 2;
  story.querySelector(".progress").replaceChildren(...steps);
}

function drawCounts() {
  const { ready, running = 0, silent = 0, stuck = 0, pending = 0 } = tally;
  show("nodes", ready, `of ${world.nodes.size}`, ready < world.nodes.size ? "is-sand" : "");
  show("running", running, pending > 0 ? `${pending.toLocaleString("en")} Pending` : "", "");
  show("silent", silent, "", silent > 0 ? "is-sand" : "");
  show("stuck", stuck, "", stuck > 0 ? "is-coral" : "");
  show("recovered", world.recovered, "", world.recovered > 0 ? "is-sea" : "");
}

function show(name, value, beside, classes) {
  const box = find(`[data-count="${name}"]`);
  setText(box.querySelector("b"), value.toLocaleString("en"));
  setText(box.querySelector("span"), beside);
  box.className = classes;
}

// ---- one node -----------------------------------------------------------------------------------

const panel = find("#node");

export function openNode(name) {
  shown = name;
  panel.hidden = false;
  panel.querySelector(".answer").textContent = "";
  press(name);
  drawNodePanel();
  find("#node-name").focus();
}

function closeNode() {
  if (!shown) return;
  const name = shown;
  shown = null;
  panel.hidden = true;
  press(null);
  focusNode(name);
}

function drawNodeState() {
  const node = world.nodes.get(shown);
  const zone = node?.zone ? `Zone ${node.zone}, ` : "";
  setText(panel.querySelector(".state"), node ? zone + stateWords(node) : "This node was deleted.");
}

function drawNodePanel() {
  if (!shown) return;
  setText(find("#node-name"), shown);
  drawNodeState();
  panel.querySelector(".wishes").hidden = !world.hello.canWish || !world.nodes.has(shown);
  const pods = [...world.pods.values()].filter((p) => p.node === shown && p.state !== "succeeded");
  pods.sort((a, b) => (a.name < b.name ? -1 : 1));
  panel.querySelector(".list").replaceChildren(...pods.map((pod) => {
    const item = element("li");
    const kind = ["Job", "StatefulSet"].includes(pod.workload.kind) ? pod.workload.kind : "Deployment";
    item.append(element("i", `pod ${pod.state} ${kind}`), element("b", "", pod.name), element("span", "", WORDS[pod.state]));
    return item;
  }));
}

const WORDS = {
  pending: "Pending", running: "Running", silent: "Unknown", ending: "Terminating", stuck: "stuck Terminating", failed: "Failed",
};
const DONE = {
  crash: "crashed, still Ready", partition: "cut off, still Ready", heal: "",
};

panel.querySelector(".close").addEventListener("click", closeNode);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeNode();
});
panel.querySelector(".wishes").addEventListener("click", async (event) => {
  const fault = event.target.dataset.fault;
  if (!fault) return;
  const node = shown;
  event.target.disabled = true;
  const problem = await wish(node, fault);
  event.target.disabled = false;
  panel.querySelector(".answer").textContent = problem;
  if (!problem) markWished(node, DONE[fault]);
});

// ---- stuck pods and waiting nodes ----------------------------------------------------------------

const cases = new Map();

/** All stuck pods, with or without a verdict, and all waiting or blocked nodes and Jobs. */
function allCases() {
  const all = [];
  for (const pod of world.pods.values()) {
    if (pod.state !== "stuck") continue;
    const subject = `pod ${pod.namespace}/${pod.name}`;
    const verdicts = [...(world.verdicts.get(subject)?.values() ?? [])];
    // If no other recovery applies to a pod, the reset of its AppWrapper ends it.
    const ofWrapper = world.verdicts.get(`${pod.namespace}/${pod.appWrapper}`)?.get("appwrapper");
    const verdict = verdicts.find((v) => v.verdict !== "Ignore") ?? ofWrapper ?? verdicts[0];
    all.push({ key: pod.uid, who: `${pod.namespace}/${pod.name}`, where: `on ${pod.node}`, verdict });
  }
  for (const [subject, verdicts] of world.verdicts) {
    if (subject.startsWith("pod ")) continue;
    for (const verdict of verdicts.values()) {
      if (verdict.verdict !== "Blocked" && !(verdict.verdict === "Wait" && subject.startsWith("node "))) continue;
      const who = verdict.recovery === "appwrapper" ? `appwrapper ${subject}` : subject;
      all.push({ key: `${subject} ${verdict.recovery}`, who, where: "", verdict });
    }
  }
  return all.sort((a, b) => (a.who < b.who ? -1 : 1));
}

function drawCases() {
  const all = allCases();
  const section = find("#stuck");
  section.querySelector(".empty").hidden = all.length > 0;
  const badge = section.querySelector(".badge");
  badge.hidden = all.length === 0;
  setText(badge, String(all.length));
  const list = section.querySelector(".cases");
  const shown = all.slice(0, MOST_CASES);
  const present = new Set(shown.map((one) => one.key));
  for (const [key, { element: item }] of cases) {
    if (present.has(key)) continue;
    item.remove();
    cases.delete(key);
  }
  shown.forEach((one, place) => {
    const signature = JSON.stringify(one);
    const known = cases.get(one.key);
    const item = known?.signature === signature ? known.element : drawCase(one);
    const isNew = item !== known?.element;
    const hadFocus = isNew && known?.element.contains(document.activeElement);
    if (isNew) {
      const details = item.querySelector("details");
      if (details && known?.element.querySelector("details")?.open) details.open = true;
      known?.element.replaceWith(item);
      cases.set(one.key, { signature, element: item });
    }
    // Moving an element drops its keyboard focus, so only misplaced elements are moved.
    if (list.children[place] !== item) list.insertBefore(item, list.children[place] ?? null);
    if (hadFocus) item.querySelector("summary")?.focus();
  });
  const more = section.querySelector(".more");
  more.hidden = all.length <= MOST_CASES;
  setText(more, `and ${(all.length - MOST_CASES).toLocaleString("en")} more`);
}

function drawCase({ who, where, verdict }) {
  const item = element("li", verdict?.verdict ?? "None");
  const head = element("div", "who");
  head.append(element("b", "", who), element("span", "", where));
  const state = element("em");
  head.append(state);
  item.append(head);
  if (!verdict) {
    state.textContent = "not recovered";
    const why = !world.hello.hasOperator
      ? "Salvor is not running. The pod stays Terminating until its node is Ready again."
      : world.leads === false
        ? "This replica of Salvor is not the leader. Only the leader has verdicts."
        : "No recovery applies: the owner of the pod has not opted in.";
    item.append(element("p", "", why));
    return item;
  }
  const until = verdict.until ? Date.parse(verdict.until) : null;
  const names = { Wait: "waiting", Blocked: "blocked", Act: "recovering now", Ignore: "not recovered" };
  // A running repair has no countdown: its time is the deadline after which it counts as stuck.
  const waits = until && verdict.verdict === "Wait" && verdict.reason !== "RepairUnderWay";
  state.textContent = waits ? waiting(until) : verdict.reason === "RepairUnderWay" ? "repairing" : names[verdict.verdict];
  if (waits) state.dataset.until = until;
  item.append(element("p", "", verdict.message));
  if (verdict.blockedBy) item.append(element("p", "", `Blocked: ${verdict.blockedBy}`));
  const details = element("details");
  details.append(element("summary", "", "all rules"));
  const rules = element("ul");
  for (const { question, observed, holds } of verdict.findings) {
    rules.append(element("li", holds ? "" : "no", `${question} ${observed}`));
  }
  details.append(rules);
  if (verdict.whatWouldChangeIt) details.append(element("p", "", verdict.whatWouldChangeIt));
  item.append(details);
  return item;
}

// ---- workloads ----------------------------------------------------------------------------------

function drawWork() {
  const all = new Map();
  for (const pod of world.pods.values()) {
    const key = `${pod.workload.name} ${pod.workload.kind}`;
    let work = all.get(key);
    if (!work) all.set(key, (work = { ...pod.workload, running: 0, succeeded: 0, silent: 0, stuck: 0, pending: 0, ending: 0, failed: 0 }));
    work[pod.state] += 1;
  }
  const trouble = (w) => w.stuck * 1000 + w.silent;
  const list = [...all.values()].sort((a, b) => trouble(b) - trouble(a) || (a.name < b.name ? -1 : 1));
  const section = find("#work");
  section.hidden = list.length === 0;
  section.querySelector("ul").replaceChildren(...list.slice(0, MOST_WORK).map((work) => {
    const item = element("li");
    const name = element("b", "", work.name);
    name.append(element("small", "", work.kind));
    const parts = [];
    if (work.running > 0) parts.push(`${work.running} Running`);
    if (work.pending > 0) parts.push(`${work.pending} Pending`);
    if (work.silent > 0) parts.push(`${work.silent} Unknown`);
    if (work.stuck > 0) parts.push(`${work.stuck} stuck`);
    if (work.ending > 0) parts.push(`${work.ending} Terminating`);
    if (work.succeeded > 0) parts.push(`${work.succeeded} Succeeded`);
    const bar = element("div", "bar");
    for (const state of ["succeeded", "running", "silent", "stuck", "pending"]) {
      if (work[state] === 0) continue;
      const part = element("i", state);
      part.style.flexGrow = work[state];
      bar.append(part);
    }
    item.append(name, element("span", "", parts.join(", ")), bar);
    return item;
  }));
  const more = section.querySelector(".more");
  more.hidden = list.length <= MOST_WORK;
  setText(more, `and ${(list.length - MOST_WORK).toLocaleString("en")} more`);
}

// ---- the timeline -------------------------------------------------------------------------------

const lines = new Map();
const samples = [];

function drawMoments(isNew) {
  const list = find("#happened ol");
  if ((isNew || world.moments.size === 0) && lines.size > 0) {
    lines.clear();
    list.replaceChildren();
  }
  find("#happened .empty").hidden = world.moments.size > 0;
  for (const [number, moment] of world.moments) {
    const known = lines.get(number);
    if (known?.text === moment.text) continue;
    const item = element("li", moment.kind);
    item.append(element("time", "", time(moment.at)), element("i"), element("p", "", moment.text));
    if (known) known.element.replaceWith(item);
    else list.prepend(item);
    lines.set(number, { text: moment.text, element: item });
  }
  const oldest = Math.max(-1, ...lines.keys()) - MOST_MOMENTS;
  for (const [number, line] of lines) {
    if (number > oldest) continue;
    line.element.remove();
    lines.delete(number);
    world.moments.delete(number);
  }
}

/** Draws the recent number of pods that were stuck or on unreachable nodes. */
function sample() {
  samples.push([tally.silent ?? 0, tally.stuck ?? 0]);
  if (samples.length > MOST_SAMPLES) samples.shift();
  const most = Math.max(4, ...samples.map(([silent, stuck]) => silent + stuck));
  const area = (of) => {
    const points = samples.map((s, i) => `${i + MOST_SAMPLES - samples.length},${(48 - (of(s) / most) * 44).toFixed(1)}`);
    return `${MOST_SAMPLES - samples.length},48 ${points.join(" ")} ${MOST_SAMPLES - 1},48`;
  };
  find("#chart .silent").setAttribute("points", area(([silent, stuck]) => silent + stuck));
  find("#chart .stuck").setAttribute("points", area(([, stuck]) => stuck));
}
