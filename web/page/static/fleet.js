// All links of the target's metadata, the worst first. The filters are in the address.
import { $, el, text, parts, keyed, time, figure, levels, levelOf, shapeOf, chip } from "./dom.js";
import { date, seconds } from "./format.js";

const pollEvery = 3000;
const silentAfter = 10000;
const oldAfter = 60; // seconds

const columns = ["Link", "Verdict", "Leader", "State", "Lag", "Oplog window", "As of"];
let list = null;
let missing = ""; // what the list lacks
let at = null; // the server's time of the list
let heard = 0;
const began = Date.now();
let failed = "";

const params = new URLSearchParams(location.search);
const form = $("filters");
form.q.value = params.get("q") ?? "";
const chosen = new Set((params.get("level") ?? "").split(",").filter((l) => levels.includes(l)));

for (const l of levels) {
	const box = el("input", { type: "checkbox", name: "level", value: l, checked: chosen.has(l) });
	$("levels").append(el("label", { "data-level": l }, box, el("span", { class: "shape", "aria-hidden": "true" }, shapeOf(l)), l, el("b", { id: "n-" + l })));
}
$("links").tHead.append(el("tr", null, ...columns.map((c) => el("th", { scope: "col" }, c))));
form.addEventListener("submit", (e) => e.preventDefault());
form.addEventListener("input", () => {
	chosen.clear();
	for (const box of form.querySelectorAll("[name=level]:checked")) chosen.add(box.value);
	const p = new URLSearchParams();
	if (form.q.value.trim()) p.set("q", form.q.value.trim());
	if (chosen.size) p.set("level", [...chosen].join(","));
	window.history.replaceState(null, "", p.size ? "?" + p : location.pathname);
	render();
});

async function load() {
	try {
		const reply = await fetch("links", { signal: AbortSignal.timeout(silentAfter) });
		if (!reply.ok) throw new Error(((await reply.text()).trim() || "status " + reply.status).slice(0, 300));
		const body = await reply.json();
		list = body.links ?? [];
		missing = (body.omitted ? " " + body.omitted + " more are not shown." : "") + (body.error ? " Links may be missing: " + body.error + "." : "");
		at = date(body.at) ?? new Date();
		heard = Date.now();
		failed = "";
	} catch (e) {
		failed = e.message;
	}
	render();
	setTimeout(load, pollEvery);
}

const old = (l) => {
	const d = date(l.at);
	return !d || (at - d) / 1000 > oldAfter;
};
// A verdict of a minute ago is not one of now.
const level = (l) => (old(l) && levelOf(l.verdict?.level) !== "broken" ? "unknown" : levelOf(l.verdict?.level));
const sentence = (l) => l.verdict?.sentence ?? null;

function worse(a, b) {
	const window_ = (l) => l.oplogWindowLeftSeconds ?? Infinity;
	return levels.indexOf(level(a)) - levels.indexOf(level(b)) || window_(a) - window_(b) || (b.lagSeconds ?? 0) - (a.lagSeconds ?? 0) || String(a.link).localeCompare(String(b.link));
}

function render() {
	const silent = Date.now() - (heard || began);
	const stale = failed !== "" || silent > silentAfter;
	document.body.classList.toggle("stale", stale);
	text($("live"), stale ? "disconnected for " + seconds(Math.round(silent / 1000)) : heard ? "live" : "connecting");
	if (list === null) {
		if (failed) text($("summary"), "The links are unknown: " + failed);
		return;
	}
	const wanted = form.q.value.trim().toLowerCase();
	const numbers = Object.fromEntries(levels.map((l) => [l, list.filter((x) => level(x) === l).length]));
	for (const l of levels) text($("n-" + l), numbers[l]);
	const said = levels.filter((l) => numbers[l]).map((l) => numbers[l] + " " + l);
	text($("summary"), (stale ? "As of " + seconds(Math.round(silent / 1000)) + " ago: " : "") + (list.length ? said.join(", ") + "." : missing ? "" : "The target's metadata have no links.") + missing);
	const shown = list
		.filter((l) => (!chosen.size || chosen.has(level(l))) && [l.link, sentence(l), l.leader, l.state].join(" ").toLowerCase().includes(wanted))
		.sort(worse);
	keyed($("links").tBodies[0], shown, (l) => "link " + l.link, make, fill);
	$("links").closest("section").hidden = list.length === 0;
	$("links").hidden = shown.length === 0;
	$("none").hidden = shown.length > 0 || list.length === 0;
	text($("none"), "None of " + list.length + " links matches.");
	const worst = levels.find((l) => numbers[l]) ?? "unknown";
	document.title = shapeOf(stale ? "unknown" : worst) + " " + list.length + " links · replicator";
}

function make() {
	return el("tr", null, ...columns.map((c, i) => el(i ? "td" : "th", { "data-label": c, scope: i ? null : "row" })));
}

function fill(tr, l) {
	const [link, verdict, leader, state, lag, left, asOf] = tr.cells;
	tr.dataset.level = level(l);
	const page = l.page && new URL(l.page, location.href);
	if (page && page.origin === location.origin) parts(link, el("a", { href: page.pathname }, l.link));
	else text(link, l.link);
	const d = date(l.at);
	const was = old(l) ? (d ? "Nothing heard for " + seconds((at - d) / 1000) + ". It said last: " : "Nothing heard. ") : "";
	parts(verdict, chip(level(l)), el("span", "says", " " + was + (sentence(l) ?? "unknown")));
	figure(leader, l.leader?.replace(/:\d+:\w+$/, "") || null);
	leader.title = l.leader ?? "";
	figure(state, l.state || null);
	figure(lag, old(l) ? null : seconds(l.lagSeconds));
	figure(left, old(l) ? null : seconds(l.oplogWindowLeftSeconds));
	if (d) parts(asOf, time(d));
	else figure(asOf, null);
}

load();
setInterval(render, 1000);
