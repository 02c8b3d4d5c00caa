// The charts: the history of the process, by uPlot, with one crosshair.
/* global uPlot */
import { $, el, text, time, parts, levelOf, shapeOf } from "./dom.js";
import { bytes, bytesPerSecond, compact, count, perSecond, seconds } from "./format.js";

const dashes = [[], [6, 4], [2, 3], [10, 3, 2, 3]];
const lineStyles = ["solid", "dashed", "dotted", "double"];

const one = (label, unit, ...series) => ({ label, unit, series: series.map(([name, title]) => ({ name, title })) });
const charts = [
	one("Delay", seconds, ["lagSeconds", "lag"], ["oldestUnappliedSeconds", "age of the oldest unapplied"]),
	one("Latency, source to target", seconds, ["latencyP50Seconds", "p50"], ["latencyP95Seconds", "p95"], ["latencyP99Seconds", "p99"]),
	one("Operations applied", perSecond, ["insertsPerSecond", "inserts"], ["updatesPerSecond", "updates"], ["deletesPerSecond", "deletes"], ["commandsPerSecond", "commands"]),
	one("Throughput", bytesPerSecond, ["bytesPerSecond", "applied"]),
	one("Waiting to be applied", bytes, ["bufferBytes", "buffer"], ["spoolBytes", "spool"]),
	one("Oplog window left", seconds, ["oplogWindowSeconds", "window"]),
	{ ...one("Copied bytes", bytes, ["copyBytes", "done"]), copy: true },
	{ ...one("Copied documents", count, ["copyDocs", "done"]), copy: true },
	{ ...one("Copy, time left", seconds, ["copyEtaSeconds", "about"]), copy: true },
];
const scheme = matchMedia("(prefers-color-scheme: dark)");
const spans = { "1h": 3600, "6h": 21600, "24h": 86400 };

let range = "1h";
let history = null;
let first = 0; // when the first point is
let copying = false; // the link has a copy now
let plots = [];
let asked = 0; // counts the requests: an answer to an older one is dropped
let timer = 0;
let onEvents = () => {};

export function startCharts(events) {
	onEvents = events;
	for (const r of Object.keys(spans)) {
		$("ranges").append(el("button", { type: "button", "aria-pressed": r === range, "data-range": r, onclick: () => choose(r) }, r.replace("h", " h")));
	}
	scheme.addEventListener("change", draw);
	let width = 0;
	new ResizeObserver(() => {
		const w = $("charts").clientWidth;
		if (w !== width && plots.length > 0) for (const p of plots) p.plot.setSize({ width: p.box.clientWidth, height: 170 });
		width = w;
	}).observe($("charts"));
	document.addEventListener("visibilitychange", () => document.hidden || loadCharts());
}

function choose(r) {
	range = r;
	for (const b of $("ranges").children) b.setAttribute("aria-pressed", b.dataset.range === r);
	loadCharts();
}

// loadCharts reads the history, again and again.
export async function loadCharts() {
	clearTimeout(timer);
	const mine = ++asked;
	let next = 5;
	try {
		const reply = await fetch("history?range=" + range);
		if (!reply.ok) throw new Error("the process answers " + reply.status);
		const h = await reply.json();
		if (mine !== asked) return;
		history = h;
		next = Math.min(60, Math.max(5, h.stepSeconds || 0));
		$("charts-note").hidden = true;
		onEvents(h.events ?? []);
		draw();
	} catch (e) {
		if (mine !== asked) return;
		$("charts-note").hidden = false;
		text($("charts-note"), "The history could not be read: " + e.message + ". " + (history ? "The charts show the history read before." : ""));
	}
	timer = setTimeout(() => document.hidden || loadCharts(), next * 1000);
}

export function showCopying(now) {
	if (now === copying) return;
	copying = now;
	draw();
}

// columns are the times, then each series; missing values are null.
function columns(chart) {
	const all = chart.series.map((s) => history.series?.[s.name] ?? []);
	const n = Math.max(0, ...all.map((v) => v.length));
	const step = history.stepSeconds || 1;
	const times = Array.from({ length: n }, (_, i) => history.from + i * step);
	return [times, ...all.map((v) => times.map((_, i) => (typeof v[i] === "number" ? v[i] : null)))];
}

const some = (data) => data.slice(1).some((v) => v.some((x) => x !== null));

function draw() {
	if (!history) return;
	const shown = [];
	first = Infinity;
	for (const chart of charts) {
		const data = columns(chart);
		first = Math.min(first, data[0][data[0].findIndex((_, i) => data.some((v, n) => n > 0 && v[i] !== null))] ?? Infinity);
		if (!chart.copy || copying || some(data)) shown.push([chart, data]);
	}
	const form = scheme.matches + shown.map(([c]) => c.label).join();
	if (plots.form === form) {
		for (const [i, [, data]] of shown.entries()) {
			plots[i].plot.setData(data, false);
			plots[i].plot.setScale("x", { min: xRange()[0], max: xRange()[1] });
			none(plots[i], data);
		}
	} else {
		for (const p of plots) p.plot.destroy();
		$("charts").replaceChildren();
		plots = shown.map(([chart, data]) => plotOf(chart, data));
		plots.form = form;
	}
	for (const p of plots) legend(p);
}

function xRange() {
	const end = new Date(history.at).getTime() / 1000 || history.from + spans[range];
	return [Math.max(end - spans[range], Math.min(first, end - 300)), end];
}

function none(p, data) {
	p.none.hidden = some(data);
}

function plotOf(chart, data) {
	const box = el("div", { class: "plot", role: "group", tabindex: "0", "aria-label": chart.label + ". Arrow keys move the crosshair" });
	const keys = el("p", "legend");
	const empty = el("p", "none unknown", "unknown: no points in this range");
	$("charts").append(el("figure", "chart", el("figcaption", null, el("h3", null, chart.label), keys), el("div", "frame", box, empty)));
	const grid = { stroke: color("--grid"), width: 1 };
	const axis = { stroke: color("--dim"), font: "11px system-ui, sans-serif", grid, ticks: { ...grid, size: 4 } };
	const plot = new uPlot(
		{
			width: box.clientWidth,
			height: 170,
			tzDate: (ts) => uPlot.tzDate(new Date(ts * 1e3), "Etc/UTC"),
			legend: { show: false },
			cursor: { y: false, sync: { key: "time" }, drag: { x: false, y: false }, points: { size: 6 } },
			scales: { x: { range: xRange }, y: { range: fromZero } },
			axes: [
				{ ...axis, size: 26, values: (u, splits) => splits.map(clock), space: 64 },
				{ ...axis, size: 76, space: 26, incrs: increments.get(chart.unit) ?? powers(10, [1, 2, 5], 0.001), values: (u, splits) => splits.map(chart.unit === count ? (x) => compact(x) : chart.unit) },
			],
			series: [
				{},
				...chart.series.map((s, i) => ({
					label: s.title,
					stroke: color("--s" + (i + 1)),
					width: 1.6,
					dash: dashes[i],
					points: { show: (u, n, from, to) => to - from < 2, size: 4 },
				})),
			],
			hooks: { draw: [marks], setCursor: [moved] },
		},
		data,
		box,
	);
	const p = { chart, plot, box, keys, none: empty };
	none(p, data);
	box.addEventListener("keydown", (e) => step(e, plot));
	return p;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const fromZero = (u, min, max) => [0, max > 0 ? max * 1.1 : 1];

// powers are steps between lines.
function powers(base, factors, from, to = 1e15) {
	const out = [];
	for (let p = from; p < to; p *= base) for (const f of factors) out.push(p * f);
	return out;
}
const binary = powers(2, [1], 1);
const increments = new Map([
	[seconds, [...powers(10, [1, 2, 5], 0.001, 9), 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 432000, 8640000]],
	[bytes, binary],
	[bytesPerSecond, binary],
]);

// clock is the time of day in UTC, the date where a day begins.
function clock(ts) {
	const iso = new Date(ts * 1000).toISOString();
	const t = iso.slice(11, 16);
	return t === "00:00" ? iso.slice(5, 10) : t;
}

function marks(u) {
	const { ctx, bbox } = u;
	const px = devicePixelRatio;
	ctx.save();
	ctx.beginPath();
	ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
	ctx.clip();
	for (const e of history.events ?? []) {
		const at = new Date(e.at).getTime() / 1000;
		if (!(at >= u.scales.x.min && at <= u.scales.x.max)) continue;
		const x = Math.round(u.valToPos(at, "x", true));
		ctx.strokeStyle = ctx.fillStyle = color("--" + eventLevel(e));
		ctx.lineWidth = px;
		ctx.globalAlpha = 0.75;
		ctx.setLineDash([3 * px, 3 * px]);
		ctx.beginPath();
		ctx.moveTo(x, bbox.top);
		ctx.lineTo(x, bbox.top + bbox.height);
		ctx.stroke();
		const r = 4 * px;
		ctx.beginPath();
		ctx.moveTo(x - r, bbox.top);
		ctx.lineTo(x + r, bbox.top);
		ctx.lineTo(x, bbox.top + 1.6 * r);
		ctx.fill();
	}
	ctx.restore();
}

// eventLevel maps the levels of the log to those of verdicts.
export function eventLevel(e) {
	const l = String(e.level ?? "").toLowerCase();
	return { error: "broken", warn: "attention", warning: "attention", info: "working", debug: "unknown" }[l] ?? levelOf(l);
}

// moved shows the values at the crosshair.
function moved(u) {
	for (const p of plots) if (p.plot === u) legend(p);
	const i = u.cursor.idx;
	if (i == null || !u.data[0].length) {
		text($("marked"), "");
		return;
	}
	const at = u.data[0][i];
	const reach = (u.scales.x.max - u.scales.x.min) / 120;
	const near = (history.events ?? []).filter((e) => Math.abs(new Date(e.at).getTime() / 1000 - at) <= reach);
	const said = near.slice(0, 3).map((e) => " " + shapeOf(eventLevel(e)) + " " + (e.kind ?? "other") + ": " + e.message);
	parts($("marked"), time(new Date(at * 1000)), said.join(";") + (near.length > 3 ? "; and " + (near.length - 3) + " more" : ""));
}

// legend names the series, with the values at the crosshair, or the last ones.
function legend(p) {
	const i = p.plot.cursor.idx;
	parts(
		p.keys,
		...p.chart.series.map((s, n) => {
			const values = p.plot.data[n + 1];
			const v = p.chart.unit(values[i ?? values.length - 1]);
			return el(
				"span",
				null,
				el("i", { class: "key s" + (n + 1) + " " + lineStyles[n], "aria-hidden": "true" }),
				s.title + " ",
				el("b", { class: v === null ? "unknown" : null }, v ?? "unknown"),
			);
		}),
	);
}

function step(e, u) {
	const n = u.data[0].length;
	const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -n, End: n }[e.key];
	if (!by || !n) return;
	e.preventDefault();
	const i = Math.min(n - 1, Math.max(0, (u.cursor.idx ?? n - 1) + by));
	u.setCursor({ left: u.valToPos(u.data[0][i], "x"), top: 10 }, true, true);
}
