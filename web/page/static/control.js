// Requests to the link: each button asks first, then shows what becomes of it.
import { $, el, text, parts, keyed, time, shapeOf } from "./dom.js";
import { bytesPerSecond, date, known, pairs, percent, perSecond, seconds } from "./format.js";

const tokenKey = "replicator-token";
const pollEvery = 2000;

let last = null; // the last Snapshot
let sent = null; // the request sent last: {id, name}
let stored = null; // the requests, where the status has none
let asked = 0; // when they were read

export function startControl() {
	$("pause").addEventListener("click", () =>
		ask({ kind: "pause", title: "Pause " + name() + "?", text: "Nothing is copied or applied meanwhile; the source is read on, as far as there is room. " + window_(), yes: "Pause" }),
	);
	$("resume").addEventListener("click", () => ask({ kind: "resume", title: "Resume " + name() + "?", text: "The link continues where it was paused.", yes: "Resume" }));
	$("throttle").addEventListener("click", askThrottle);
	$("verify").addEventListener("click", () =>
		ask({ kind: "verify", title: "Verify " + name() + " again?", text: "Everything is compared with the source again, after the round that runs, if the process that has the link verifies continuously (--verify=continuous). It writes nothing to the data.", yes: "Verify" }),
	);
	$("loglevel").addEventListener("click", () => {
		const level = el("select", { id: "f-level" }, ...["default", "debug", "info", "warn", "error"].map((l) => el("option", { selected: l === (last?.control?.logLevel ?? "default") }, l)));
		ask({ kind: "logLevel", title: "Set the log level of " + name() + "?", text: "It holds for every process that takes the link over. Default is the level that it was started with.", fields: [el("label", null, "Level ", level)], args: () => ({ level: level.value }), yes: "Set" });
	});
}

export function askCopyAgain(namespace) {
	ask({
		kind: "resync",
		title: "Copy " + namespace + " again?",
		text: "All other collections continue. The target is not consistent until that has finished.",
		args: () => ({ namespaces: [namespace] }),
		yes: "Copy again",
	});
}

const name = () => last?.link ?? "the link";

function window_() {
	const left = last?.oplogRolloverSeconds ?? last?.oplogWindowLeftSeconds;
	return (known(left) ? "The source's oplog lasts " + seconds(left) + ": after a longer pause" : "How long the source's oplog lasts is unknown: after a pause that is too long") + " everything has to be copied again, unless the oplog goes to disk.";
}

const limits = [
	["copyBytesPerSecond", "Copying, MiB/s", 1048576],
	["copyOpsPerSecond", "Copying, operations/s", 1],
	["applyBytesPerSecond", "Applying, MiB/s", 1048576],
	["applyOpsPerSecond", "Applying, operations/s", 1],
];

function askThrottle() {
	const t = last?.control?.throttle ?? {};
	const inputs = limits.map(([key, , unit]) => el("input", { type: "number", min: "0", step: "any", inputmode: "decimal", name: key, value: known(t[key]) && t[key] > 0 ? t[key] / unit : "" }));
	const adaptive = el("input", { type: "checkbox", name: "adaptive", checked: t.adaptive === true });
	const shown = inputs.map((x) => x.value);
	// Unchanged fields are not sent: the copy may have limits of the start, which are not shown.
	const changed = () => {
		const args = {};
		for (const [i, [key, , unit]] of limits.entries()) {
			const n = Number(inputs[i].value);
			if (inputs[i].value !== shown[i]) args[key] = n > 0 ? Math.max(1, Math.round(n * unit)) : null;
		}
		if (adaptive.checked !== (t.adaptive === true)) args.adaptive = adaptive.checked;
		return args;
	};
	ask({
		kind: "throttle",
		title: "Throttle " + name() + "?",
		text: "Unchanged fields stay as they are; a limit that is emptied is removed. The limits hold until they are changed, in every process that takes over.",
		fields: [...limits.map(([, label], i) => el("label", null, label + " ", inputs[i])), el("label", "check", adaptive, " Adapt to the target's pressure")],
		args: changed,
		yes: "Throttle",
	});
}

function ask(what) {
	text($("ask-h"), what.title);
	text($("ask-text"), what.text);
	$("ask-fields").replaceChildren(...(what.fields ?? []));
	text($("ask-yes"), what.yes);
	text($("ask-error"), "");
	$("ask-why").value = "";
	const dialog = $("ask");
	const form = dialog.querySelector("form");
	form.onsubmit = (e) => {
		e.preventDefault();
		if (e.submitter?.value !== "yes") {
			dialog.close();
			return;
		}
		send(dialog, what);
	};
	if (!dialog.open) dialog.showModal();
}

async function send(dialog, what) {
	const yes = $("ask-yes");
	yes.disabled = true;
	text($("ask-error"), "");
	try {
		const field = $("f-token");
		if (field?.value) sessionStorage.setItem(tokenKey, field.value.trim());
		const token = sessionStorage.getItem(tokenKey);
		const body = { kind: what.kind, why: $("ask-why").value.trim(), args: what.args?.() ?? {} };
		const reply = await fetch("requests", {
			method: "POST",
			headers: { "Content-Type": "application/json", ...(token ? { Authorization: "Bearer " + token } : {}) },
			body: JSON.stringify(body),
		});
		if (reply.status === 401) {
			sessionStorage.removeItem(tokenKey);
			needToken(token !== null);
		} else if (!reply.ok) text($("ask-error"), "Refused: " + (await refusal(reply)));
		else {
			sent = { id: (await reply.json()).id, name: what.yes };
			dialog.close();
			asked = 0;
			showControl(last);
		}
	} catch (e) {
		text($("ask-error"), "The request could not be sent: " + e.message + ".");
	}
	yes.disabled = false;
}

function needToken(had) {
	if (!$("f-token")) $("ask-fields").append(el("label", null, "Token ", el("input", { id: "f-token", type: "password", autocomplete: "off" })));
	$("f-token").value = "";
	$("f-token").focus();
	text($("ask-error"), had ? "The process did not take the token. Enter another one." : "The process wants a token. It is kept until this tab is closed.");
}

async function refusal(reply) {
	const body = await reply.text();
	try {
		return JSON.parse(body).error || body;
	} catch {
		return body.trim() || "status " + reply.status;
	}
}

// read reads the requests from the target: the status of a process that stands by does not have them.
async function read() {
	asked = Date.now();
	try {
		const reply = await fetch("requests");
		if (reply.ok) stored = await reply.json();
	} catch {
		// The page says that the process is gone.
	}
}

const find = (list) => (sent ? (list ?? []).find((r) => r.id === sent.id) : null);
const ended = (r) => ["done", "failed", "refused"].includes(r.state);
const stateLevel = { asked: "working", working: "working", done: "good", failed: "broken", refused: "attention" };

function showOutcome(list) {
	if (!sent) return;
	const r = find(list);
	const out = $("outcome");
	if (!r && out.dataset.state && out.dataset.id === sent.id) return;
	out.dataset.id = sent.id;
	out.dataset.state = r?.state ?? "sent";
	const level = stateLevel[r?.state] ?? "working";
	out.dataset.level = level;
	parts(out, el("strong", null, shapeOf(level) + " " + sent.name + ": " + (r?.state ?? "sent")), r ? (r.outcome ? ". " + r.outcome : ended(r) ? "" : ", waiting for the process that has the link") : ", waiting to be seen");
}

export function showControl(s) {
	last = s;
	const c = s.control;
	const paused = c ? c.paused ?? null : undefined;
	$("pause").hidden = Boolean(paused);
	$("resume").hidden = paused === null;
	$("resume").classList.toggle("primary", Boolean(paused));
	held(c, paused, s);
	if (s.link && !c && Date.now() - asked > (sent ? pollEvery : 5 * pollEvery)) read();
	const list = c ? c.requests ?? null : stored;
	showOutcome(list);
	showRequests(list);
}

function held(c, paused, s) {
	const lines = [];
	if (c === undefined || c === null) lines.push(el("span", "unknown", "Whether the link is paused or throttled is unknown."));
	if (paused) {
		const since = date(paused.since);
		const may = seconds(paused.mayLastSeconds);
		lines.push(el("strong", null, "‖ Paused"), since ? " since " : " since an unknown time", since ? time(since) : null, by(paused), ". ");
		if (s.spool && !s.spool.full) lines.push("The oplog goes to disk meanwhile. ");
		else if (may && !known(s.oplogRolloverSeconds)) lines.push(el("strong", null, "How long it may last is not known"), "; the source's oplog reaches back " + may + " before the checkpoint. ");
		else lines.push(el("strong", null, "It may last " + (may ?? "an unknown time") + (may ? " more" : "")), " before the source's oplog rolls over. ");
	}
	const t = c?.throttle;
	const set = t ? limits.filter(([key]) => known(t[key]) && t[key] > 0) : [];
	if (set.length || t?.adaptive) {
		lines.push(el("strong", null, "Throttled: "), [...set.map(([key, label, unit]) => label.split(",")[0].toLowerCase() + " " + (unit > 1 ? bytesPerSecond(t[key]) : perSecond(t[key]))), ...(t.adaptive ? ["adaptive" + (t.factor < 1 ? " (" + percent(t.factor) + " now: " + t.reason + ")" : "")] : [])].join(", ") + by(t) + ". ");
	} else if (t && !paused) lines.push("Not paused, not throttled.");
	if (c?.logLevel) lines.push(" Log level: " + c.logLevel + ". ");
	const unread = date(t?.unreadSince);
	if (unread) lines.push(el("strong", null, "▲ The limits cannot be read since "), time(unread), ": the last ones stay.");
	parts($("held"), ...lines.filter((x) => x !== null));
}

function by(x) {
	return (x.by ? " by " + x.by : "") + (x.why ? ": “" + x.why + "”" : "");
}

function showRequests(list) {
	keyed($("requests"), list ?? [], (r) => String(r.id), makeRequest, fillRequest);
	$("requests").hidden = !list?.length;
	text($("requests-note"), list === null ? "The requests are unknown." : list.length === 0 ? "None yet." : "");
}

function makeRequest(r) {
	const at = date(r.at);
	return el("li", null, el("span", "dim when", at ? time(at) : "unknown time"), el("span", "kind"), el("span", "what", el("span"), el("span", "dim fields")));
}

function fillRequest(node, r) {
	const level = stateLevel[r.state] ?? "unknown";
	node.dataset.level = level;
	parts(node.children[1], el("span", "shape", shapeOf(level)), " " + (r.state ?? "unknown"));
	const [what, more] = node.children[2].children;
	text(what, (r.kind ?? "?") + " " + pairs(r.args) + by(r));
	const changed = date(r.changedAt);
	parts(more, r.outcome ?? "", ...(changed && r.state !== "asked" ? [" (", time(changed), ")"] : []));
}
