// The page of one link.
import { follow } from "./live.js";
import { showVerdict, showLive } from "./verdict.js";
import { showTiles, showLacking, showPipeline } from "./tiles.js";
import { startCharts, loadCharts, showCopying } from "./charts.js";
import { startNamespaces, showNamespaces } from "./namespaces.js";
import { startTimeline, addEvents } from "./timeline.js";
import { startControl, askCopyAgain, showControl } from "./control.js";
import { $ } from "./dom.js";

const views = [showVerdict, showTiles, showLacking, showPipeline, showNamespaces, showControl, (s) => showCopying(s.copy?.phase === "copying")];
let version = null;

// An agent's link is below the list of all.
if (/\/link\/[^/]+\/$/.test(location.pathname)) document.querySelector("nav a").href = "../../fleet";
startCharts(addEvents);
startNamespaces(askCopyAgain);
startTimeline();
startControl();

for (const view of views.slice(1)) view({ link: null });
follow("events", {
	status(s) {
		// An agent has many links, each with a page.
		if (!s.verdict && s.links) return location.replace("fleet");
		// Another version has another page.
		if (version !== null && s.version !== version && !$("ask").open) location.reload();
		version = s.version;
		for (const view of views) {
			try {
				view(s);
			} catch (e) {
				// One field of an unknown form must not stop the others, nor the verdict.
				console.error("show the status:", e);
			}
		}
	},
	event: (e) => addEvents([e]),
	fresh: () => version !== null && loadCharts(),
	live: showLive,
});
