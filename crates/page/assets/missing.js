// Workloads that do not recover, grouped by root cause: the list of `salvor why --all -A`.
import { element, waiting } from "./parts.js";
import { now, world } from "./world.js";

const section = document.getElementById("missing");
let drawn = null;

export function drawMissing() {
  // The server sends the whole list. It is drawn only if it changed.
  if (drawn === world.missing) return;
  drawn = world.missing;
  section.hidden = !drawn;
  if (!drawn) return;
  const { causes, moreCauses, notSeen, problem } = drawn;
  const badge = section.querySelector(".badge");
  badge.hidden = causes.length === 0;
  badge.textContent = causes.length + moreCauses;
  section.querySelector(".empty").hidden = causes.length > 0 || Boolean(problem);
  section.querySelector("ul").replaceChildren(...causes.map(draw));
  const more = section.querySelector(".more");
  more.hidden = moreCauses === 0;
  more.textContent = `and ${moreCauses.toLocaleString("en")} more: salvor why --all -A`;
  const unknown = section.querySelector(".not-seen");
  const lines = notSeen.map(({ what, why }) => `Not seen: ${what}: ${why}`);
  if (problem) lines.unshift(`Nobody can tell what is missing: ${problem}`);
  unknown.hidden = lines.length === 0;
  unknown.textContent = lines.join(" · ");
}

const named = ({ kind, namespace, name }) => `${kind} ${namespace ? `${namespace}/` : ""}${name}`;

const clock = (time) => new Date(time).toLocaleTimeString("en-GB");

/** When the work is back and of what that time consists, or on what it depends; in the words of `salvor why`. */
function expectation({ at, phases, dependsOn }) {
  const steps = phases.map(({ name, until }) => `${name} ${clock(until)}`).join(", ");
  const parts = [];
  if (at) parts.push(`Expected back ${clock(at)}${steps ? `: ${steps}` : ""}`);
  if (dependsOn) parts.push(`${at ? "then" : "Expected back:"} depends on ${dependsOn}`);
  if (!at && steps) parts.push(`before that: ${steps}`);
  return parts.join("; ");
}

function draw({ code, object, message, since, until, expectedBack, workloads, moreWorkloads, remedy }) {
  const end = until ? Date.parse(until) : null;
  const item = element("li", end ? "soon" : "");
  item.dataset.code = code;
  const head = element("div", "who");
  head.append(element("b", "", code), element("span", "", named(object)));
  if (end && end > now()) {
    const left = element("em", "", waiting(end));
    left.dataset.until = end;
    head.append(left);
  } else if (since) head.append(element("em", "", `since ${new Date(since).toLocaleTimeString("en-GB")}`));
  item.append(head, element("p", "", message), element("p", "expected", expectation(expectedBack)));
  const names = workloads.map((workload) => `${named(workload)} misses ${workload.missing}`);
  if (moreWorkloads > 0) names.push(`and ${moreWorkloads.toLocaleString("en")} more`);
  item.append(element("p", "waiting", names.join(", ")));
  if (remedy) {
    const todo = element("p", "remedy", `To do: ${remedy.text}`);
    if (remedy.command) todo.append(element("code", "", remedy.command));
    item.append(todo);
  }
  return item;
}
