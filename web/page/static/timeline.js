// The timeline of events.
import { $, el, text, keyed, time, levels, shapeOf, copyText } from "./dom.js";
import { date, pairs } from "./format.js";
import { eventLevel } from "./charts.js";

const kinds = ["source", "ddl", "lease", "control", "copy", "target", "divergence", "other"];
const keep = 2000;
const show = 200;

const events = new Map(); // by id

export function startTimeline() {
	$("kind").append(el("option", { value: "" }, "all"), ...kinds.map((k) => el("option", null, k)));
	$("atleast").append(
		...[["", "all"], ["working", "info"], ["attention", "warnings"], ["broken", "errors"]].map(([value, label]) => el("option", { value }, label)),
	);
	for (const id of ["kind", "atleast", "filter"]) $(id).addEventListener("input", render);
	$("copyjson").addEventListener("click", () => copyText($("copyjson"), JSON.stringify(matching(), null, 2)));
	render();
}

export function addEvents(list) {
	for (const e of list) if (e && e.id != null) events.set(String(e.id), e);
	if (events.size > keep) for (const e of sorted().slice(keep)) events.delete(String(e.id));
	render();
}

const when = (e) => new Date(e.at).getTime() || 0;
const sorted = () => [...events.values()].sort((a, b) => when(b) - when(a) || Number(b.id) - Number(a.id) || 0);

function matching() {
	const kind = $("kind").value;
	const atLeast = levels.indexOf($("atleast").value);
	const wanted = $("filter").value.trim().toLowerCase();
	const of = (e) => ({ broken: 0, attention: 1 })[eventLevel(e)] ?? (eventLevel(e) === "unknown" ? 9 : 3);
	return sorted().filter(
		(e) => (!kind || e.kind === kind) && (atLeast < 0 || of(e) <= atLeast) && (!wanted || (e.message + " " + e.kind + " " + fields(e)).toLowerCase().includes(wanted)),
	);
}

const fields = (e) => pairs(e.fields);

function render() {
	const all = matching();
	const shown = all.slice(0, show);
	keyed($("timeline"), shown, (e) => String(e.id), make, () => {});
	$("timeline").hidden = shown.length === 0;
	const note =
		events.size === 0 ? "No events are known." : all.length === 0 ? "None of " + events.size + " events matches." : all.length > shown.length ? "The newest " + shown.length + " of " + all.length + "." : "";
	text($("timeline-note"), note);
}

function make(e) {
	const level = eventLevel(e);
	const at = date(e.at);
	const more = fields(e);
	return el(
		"li",
		{ "data-level": level },
		el("span", "dim when", at ? time(at) : "unknown time"),
		el("span", "kind", el("span", { class: "shape", title: e.level }, shapeOf(level)), " " + (e.kind ?? "other")),
		el("span", "what", el("span", null, e.message ?? ""), more ? el("span", "dim fields", more) : null),
	);
}
