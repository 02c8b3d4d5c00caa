// Figures as text. Each function returns null for an unknown value (null, missing, not a number), so
// that nothing unknown can become a 0.

export const known = (x) => typeof x === "number" && Number.isFinite(x);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const compact = new Intl.NumberFormat("en", { notation: "compact" }).format;

export function count(x) {
	return known(x) ? whole.format(x) : null;
}

export function perSecond(x) {
	return known(x) ? (x !== 0 && Math.abs(x) < 10 ? tenth : whole).format(x) + "/s" : null;
}

export function seconds(x) {
	if (!known(x)) return null;
	if (x < 0) return "−" + seconds(-x);
	if (x < 0.0005) return "0 s";
	if (x < 0.9995) return Math.round(x * 1000) + " ms";
	if (x < 9.95) return +x.toFixed(1) + " s";
	const s = Math.round(x);
	if (s < 120) return s + " s";
	const m = Math.floor(s / 60);
	if (m < 120) return m + " min" + (s % 60 && m < 10 ? " " + (s % 60) + " s" : "");
	const h = Math.floor(m / 60);
	if (h < 48) return h + " h" + (m % 60 ? " " + (m % 60) + " min" : "");
	return Math.floor(h / 24) + " d" + (h % 24 ? " " + (h % 24) + " h" : "");
}

export function bytes(x) {
	if (!known(x)) return null;
	const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
	let i = 0;
	while (Math.abs(x) >= 1024 && i < units.length - 1) {
		x /= 1024;
		i++;
	}
	return (i === 0 || x >= 100 ? whole : tenth).format(x) + " " + units[i];
}

export function bytesPerSecond(x) {
	return known(x) ? bytes(x) + "/s" : null;
}

export function percent(x) {
	return known(x) ? Math.round(x * 100) + " %" : null;
}

// date returns a Date for RFC 3339 text, or null. Go's zero time is not a time.
export function date(text) {
	if (typeof text !== "string" || text.startsWith("0001-")) return null;
	const d = new Date(text);
	return Number.isNaN(d.getTime()) ? null : d;
}

const two = (n) => String(n).padStart(2, "0");

// utc is the time of day in UTC, with the date where that is not today's.
export function utc(d, now = new Date()) {
	const time = two(d.getUTCHours()) + ":" + two(d.getUTCMinutes()) + ":" + two(d.getUTCSeconds());
	const day = d.toISOString().slice(0, 10);
	return (day === now.toISOString().slice(0, 10) ? "" : day + " ") + time + " UTC";
}

export function local(d) {
	return d.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" }) + ", your time";
}

export function pairs(x) {
	return Object.entries(x ?? {})
		.map(([k, v]) => k + "=" + (typeof v === "string" ? v : JSON.stringify(v)))
		.join("  ");
}
