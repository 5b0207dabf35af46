// Sick and repaired nodes: their states, what they wait for, and their replacements.
import { element, waiting } from "./parts.js";
import { now, world } from "./world.js";

const MOST = 12;
/** How long a finished repair is shown. */
const SHOWN_FOR = 3_600_000;
/** States that need attention come first. */
const ORDER = ["Blocked", "Vetoed", "Waiting", "Repairing", "Rebooting", "Repaired"];
const SICK = new Set(["Waiting", "Blocked", "Vetoed"]);
const REPAIRING = new Set(["Repairing", "Rebooting"]);

/** When the node's toleration ends, if the leader's verdict has it. */
function until(name) {
  const verdict = world.verdicts.get(`node ${name}`)?.get("repair");
  return verdict?.verdict === "Wait" && verdict.until ? Date.parse(verdict.until) : null;
}

export function repairClass({ repair }) {
  if (SICK.has(repair?.state)) return " sick";
  return REPAIRING.has(repair?.state) ? " repairing" : "";
}

/** A short text on the repair of a node; empty if it needs none. */
export function repairWords({ name, repair }) {
  switch (repair?.state) {
    case "Waiting": {
      const left = Math.ceil((until(name) - now()) / 1000);
      return left > 0 ? `sick, repair in ${left} s` : "sick, repair waits";
    }
    case "Blocked": return "sick, repair blocked";
    case "Vetoed": return "sick, repair forbidden";
    case "Repairing": return "being replaced";
    case "Rebooting": return "being rebooted";
    default: return "";
  }
}

export function drawRepairs() {
  const section = document.getElementById("repairs");
  const recent = (at) => at && now() - at < SHOWN_FOR;
  const all = [];
  for (const { name, repair } of world.nodes.values()) {
    const { state, message, since } = repair ?? {};
    if (!ORDER.includes(state) || (state === "Repaired" && !recent(since))) continue;
    all.push({ name, state, message, until: state === "Waiting" ? until(name) : null });
  }
  for (const { node, by, began, at } of world.replacements) {
    // A node that still exists is shown by its condition.
    if (!recent(at) || world.nodes.has(node)) continue;
    const seconds = Math.round((at - began) / 1000);
    const message = by
      ? `Node ${by} replaces it, ${seconds} s after its repair began.`
      : "The node is gone. No new node has come for it yet.";
    all.push({ name: node, state: by ? "Repaired" : "Repairing", message });
  }
  section.hidden = all.length === 0;
  if (all.length === 0) return;
  all.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (a.name < b.name ? -1 : 1));
  section.querySelector("ul").replaceChildren(...all.slice(0, MOST).map(draw));
  const more = section.querySelector(".more");
  more.hidden = all.length <= MOST;
  more.textContent = `and ${(all.length - MOST).toLocaleString("en")} more`;
}

function draw({ name, state, message, until: end }) {
  const item = element("li", state);
  const head = element("div", "who");
  head.append(element("b", "", name), element("em", "", state));
  item.append(head, element("p", "", message));
  if (end) {
    const left = element("p", "until", "Tolerated: ");
    const time = element("span", "", waiting(end));
    time.dataset.until = end;
    left.append(time, `, until ${new Date(end).toLocaleTimeString("en-GB")}`);
    item.append(left);
  }
  return item;
}
