package browser

import (
	"fmt"
	"strings"
	"time"
)

// given is a state of a link to look at.
type given struct {
	name  string
	state object
	// history changes the history, if not nil.
	history func(object)
	// gone stops the server once the page has shown the state.
	gone bool
}

func ago(d time.Duration) string { return base.Add(-d).Format(time.RFC3339Nano) }

func verdict(name, level, sentence, next string, since time.Duration, also ...any) object {
	if also == nil {
		also = []any{}
	}
	return object{"name": name, "level": level, "sentence": sentence, "next": next, "since": ago(since), "also": also}
}

func stages(buffer float64, busy ...float64) []any {
	var out []any
	for i, s := range state()["stages"].([]any) {
		s := s.(object)
		s["busy"] = busy[i]
		if s["name"] == "buffer" {
			s["depth"] = buffer
		}
		out = append(out, s)
	}
	return out
}

func copied(ns string, phase, done, total, rate, eta any) object {
	return object{
		"namespace": ns, "phase": phase, "ops": 0, "bytes": 0, "opsPerSecond": 0, "logBytesPerSecond": 0, "docsDone": nil, "docsTotal": nil,
		"bytesDone": done, "bytesTotal": total, "bytesPerSecond": rate, "etaSeconds": eta, "deferredIndexes": []any{}, "hotDocuments": nil,
	}
}

// refused are indexes that the target lacks, with names as a generator makes them.
func refused(n int) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = object{"namespace": fmt.Sprintf("warehouse_of_the_north.movements_by_supplier_and_day_%d", i), "name": strings.Repeat("attributes.dimension.value_1_", 4) + fmt.Sprint(i)}
	}
	return out
}

// cutOf is a cut of some seconds ago.
func cutOf(age float64) object {
	return object{
		"source": object{"t": 1795528915, "i": 4, "term": 7, "wall": ago(13 * time.Second)}, "target": object{"t": 1795528916, "i": 11, "wall": ago(12 * time.Second)}, "ageSeconds": age,
	}
}

// states are those of the list, and a few more.
func states() []given {
	nothing := []any{
		"exactAt", nil, "lagSeconds", nil, "ageOfOldestUnappliedSeconds", nil, "latency", nil, "rates", nil, "lagTrend", nil, "bottleneck", nil,
	}
	with := func(changes ...any) object { return state(append(append([]any{}, nothing...), changes...)...) }
	return []given{
		{name: "steady", state: state("+cut", cutOf(12), "verdict.also", []any{"4 indexes are deferred until cutover."})},
		{name: "copying", history: copies, state: with(
			"verdict", verdict("copying", "working", "Copying: 31 of 120 collections, 418,220 of about 1,301,912 MiB, about 3 h 12 min left. The target is not consistent yet. The source's oplog lasts about 26 h.", "", 95*time.Minute),
			"state", "initial-sync", "consistent", false, "consistentAt", missing,
			"+copy", object{"phase": "copying", "number": 1, "started": ago(95 * time.Minute), "host": "db3.prod:27017", "progress": object{}},
			"namespaces", []any{
				copied("shop.orders", "copying", 3.1e11, 8.2e11, 7.2e7, 7100), copied("shop.carts", "copying", 8e9, 4.1e10, 2.1e7, 1600),
				copied("crm.people", "building indexes", 6.6e9, 6.6e9, 0, nil), copied("crm.notes", nil, nil, nil, nil, nil),
			},
			"+spool", object{"bytes": 81e8, "limitBytes": 2e11, "freeBytes": 4e11, "entries": 41231234, "full": false},
		)},
		{name: "catching-up", state: state(
			"verdict", verdict("catching-up", "working", "Catching up; the oldest entry not applied is 3 min old; 8,112 operations per second are applied. The source's oplog lasts about 25 h.", "", 2*time.Minute),
			"state", "catching-up", "lagSeconds", 171.2, "ageOfOldestUnappliedSeconds", 180.0, "lagTrend", -3.4,
			"bottleneck", object{"stage": "applier", "side": "target", "why": "the target: the 16 writers are busy for 97 % of the time"},
			"stages", stages(201e6, 0.01, 0.44, 0.93, 0.31, 0.97, 0.0),
		)},
		{name: "target-slow", state: state(
			"verdict", verdict("target-slow", "attention", "The target is slow: flow control since 13:58:02 UTC. Lag grows 0.4 s/s; the oplog lasts 3 h 10 min at this pace.",
				"replicator throttle --link dr --target mongodb://dr1.backup:27017/?replicaSet=dr0 --apply-ops 2000", 4*time.Minute,
				"A command on the target has had no reply for 12 s: update on shop.orders.", "Index email_1 of shop.orders is deferred until cutover."),
			"state", "catching-up", "lagSeconds", 96.0, "exactAt", ago(97*time.Second), "ageOfOldestUnappliedSeconds", 98.2, "lagTrend", 0.4, "oplogRolloverSeconds", 4200.0,
			"oplogWindowLeftSeconds", 4200.0, "checkpoint.fetchFrom", object{"t": 1795508921, "i": 1, "term": 7},
			"bottleneck", object{"stage": "applier", "side": "target", "why": "the target: update has had no reply for 12 s"},
			"+cut", cutOf(312), "+noCut", "the lanes did not stand within 5 s",
			"stages", stages(268e6, 0.01, 0.04, 1.0, 0.02, 1.0, 0.01), "buffer.full", true,
			"+lackingViews", []any{object{"namespace": "crm.people_by_city", "why": "(InvalidPipelineOperator) Unrecognized expression '$sum2'"}}, "+lackingIndexes", refused(44),
			"control.throttle", object{"copyBytesPerSecond": 20971520, "copyOpsPerSecond": nil, "applyBytesPerSecond": nil, "applyOpsPerSecond": 2000, "adaptive": true, "factor": 0.5, "reason": "flow control", "unreadSince": nil, "by": "mira", "at": ago(time.Minute), "why": "let the reports finish"},
		)},
		{name: "interrupted", state: state(
			"verdict", verdict("cutover-interrupted", "attention", "A cutover was interrupted at step freeze, which mira@ops1 began at 2026-11-24 13:52:02 UTC: no process works on it. Writes to the source may still be blocked by it. It can be resumed, or cancelled (--cancel).",
				"replicator cutover --link dr --target mongodb://dr1.backup:27017/?replicaSet=dr0 --resume --source …", 6*time.Minute),
			"cutover", object{"state": "running", "step": "freeze", "since": ago(6 * time.Minute), "by": "mira@ops1", "committed": false, "blocksSource": true, "interrupted": true},
			"back", object{"link": "forth", "at": ago(20 * time.Hour), "start": object{"t": 1795440000, "i": 3, "term": 2}},
		)},
		{name: "source-gone", state: state(
			"verdict", verdict("source-gone", "broken", "No member of the source has answered for 4 min: rs0 at db1.prod:27017, db2.prod:27017, db3.prod:27017. The source's oplog lasts about 26 h.",
				"Check the source's members, and the network to them: db1.prod:27017, db2.prod:27017, db3.prod:27017.", 4*time.Minute),
			"source.host", "", "source.why", "no member answers", "source.dataAgeSeconds", 241.0, "lagSeconds", nil, "exactAt", ago(241*time.Second), "ageOfOldestUnappliedSeconds", 241.0, "latency", nil, "rates", nil,
			"bottleneck", object{"stage": "syncsource", "side": "source", "why": "no member of the source answers"},
		)},
		{name: "stale", state: with(
			"verdict", verdict("stale", "broken", "The oplog alone cannot bring the target up to date: no member of rs0 has the entry 1795528921:1 t7 any more; its oldest is of 09:12:44 UTC.",
				"replicator run --link NEW --drop-existing … copies everything again; give the source a larger oplog first.", 12*time.Minute),
			"state", "stale", "oplogWindowLeftSeconds", 0.0, "oplogRolloverSeconds", nil, "source.host", "", "source.why", "no member has the entry",
		)},
		{name: "standby", state: with(
			"verdict", verdict("standby", "good", "Standing by: mirror-2/4711 leads since 09:48:13 UTC, and renewed its lease 2 s ago.", "", 4*time.Hour),
			"state", "standby", "consistent", false, "consistentAt", missing, "oplogWindowLeftSeconds", nil, "oplogRolloverSeconds", nil,
			"optimes", object{}, "stages", nil, "source.host", "", "source.why", "", "source.heardAt", nil, "source.dataAgeSeconds", nil, "checkpoint", object{}, "namespaces", []any{},
			"control", nil, "deferred", nil, "buffer", object{"bytes": 0, "limitBytes": 0, "count": 0, "oldestAgeSeconds": 0, "full": false}, "feedback", object{"mode": "member", "state": "off"},
		)},
		{name: "failed", state: with(
			"verdict", verdict("failed", "broken", "Ended with an error: applier: apply 1795528927:3 t7 of shop.orders: field \"$v\" is 3: this release knows 1 and 2.",
				"Do what the error says. docs/exit-codes.md says when to start it again.", 40*time.Second),
			"state", "failed", "stages", stages(0, 0, 0, 0, 0, 0, 0),
		)},
		{name: "paused", state: state(
			"verdict", verdict("paused", "attention", "Paused since 13:44:12 UTC by mira: “replace the disk of dr1”. The pause may last 25 h more.", "replicator resume --link dr --target 'mongodb://dr1.backup:27017,dr2.backup:27017,dr3.backup:27017/?replicaSet=dr0'", 18*time.Minute),
			"control.paused", object{"since": ago(18 * time.Minute), "by": "mira", "why": "replace the disk of dr1", "mayLastSeconds": 90300},
			"latency", nil, "rates", nil,
		)},
		{name: "resyncing", state: state(
			"verdict", verdict("resync-failed", "broken", "2 collections could not be copied again and are left out: shop.carts, shop.audit: no space left on the target.", "replicator resync --link dr --target 'mongodb://dr1.backup:27017,dr2.backup:27017,dr3.backup:27017/?replicaSet=dr0' --namespace shop.carts", time.Hour),
			"consistent", false, "consistentAt", missing, "exactAt", nil, "namespacesRest.waiting", 211, "namespacesRest.ops", 88123,
			"+leftOut", []any{object{"namespace": "shop.carts", "failed": "no space left"}, object{"namespace": "shop.audit", "failed": "no space left"}, object{"namespace": "crm.a"}, object{"namespace": "crm.b"}, object{"namespace": "crm.c"}},
		)},
		{name: "disconnected", state: state(), gone: true},
		{
			name: "older", state: state("latency", missing, "rates", missing, "lagTrend", missing, "stages", missing, "bottleneck", missing, "namespaces", missing, "namespacesRest", missing, "control", missing),
			history: func(h object) { h["series"], h["events"] = object{}, nil },
		},
	}
}

// copies makes a history one of a copy.
func copies(h object) {
	series := h["series"].(object)
	docs, bytes, eta := make([]any, 360), make([]any, 360), make([]any, 360)
	for i := range docs {
		if i >= 40 {
			x := float64(i - 40)
			docs[i], bytes[i] = x*4.1e5, x*1.37e9
			if i > 50 {
				eta[i] = 24000 - x*38
			}
		}
	}
	series["copyDocs"], series["copyBytes"], series["copyEtaSeconds"] = docs, bytes, eta
	for _, name := range []string{"lagSeconds", "oldestUnappliedSeconds", "latencyP50Seconds", "latencyP95Seconds", "latencyP99Seconds", "insertsPerSecond", "updatesPerSecond", "deletesPerSecond", "commandsPerSecond", "bytesPerSecond"} {
		series[name] = make([]any, 360)
	}
}
