// Hears the server out, and shows what it told: once per frame, and only what has changed.
import { drawMap, nodeMap } from "./map.js";
import { drawPanels, openNode, tick } from "./panels.js";
import { take, takeChanges, world } from "./world.js";

let isDue = false;

function redraw() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    drawMap(takeChanges());
    drawPanels();
  });
}

function connect() {
  const source = new EventSource("changes");
  source.addEventListener("hello", (event) => {
    world.hello = JSON.parse(event.data);
    world.connected = true;
    redraw();
  });
  source.addEventListener("message", (event) => {
    take(JSON.parse(event.data));
    redraw();
  });
  source.addEventListener("error", () => {
    world.connected = false;
    redraw();
    // A browser gives up for good on an answer that it does not like.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  });
}

nodeMap(openNode);
connect();
setInterval(tick, 500);
