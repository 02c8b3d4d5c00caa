package command

import (
	"fmt"
	"testing"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

func TestRemoveExpired(t *testing.T) {
	m := newMember(t, "5.0.7")
	date := func(before time.Duration) string {
		return fmt.Sprintf(`{"$date": {"$numberLong": "%d"}}`, time.Now().Add(-before).UnixMilli())
	}
	old, fresh := date(2*time.Hour), date(time.Minute)
	for _, cmd := range []string{
		`{"createIndexes": "c", "indexes": [{"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 3600}], "$db": "app"}`,
		`{"createIndexes": "p", "indexes": [{"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 3600, "partialFilterExpression": {"done": true}}], "$db": "app"}`,
		`{"create": "m", "timeseries": {"timeField": "t"}, "expireAfterSeconds": {"$numberLong": "3600"}, "$db": "app"}`,
		`{"insert": "c", "documents": [{"_id": 1, "at": ` + old + `}, {"_id": 2, "at": ` + fresh + `}, {"_id": 3, "at": "old"}, {"_id": 4},
			{"_id": 5, "at": [` + fresh + `, ` + old + `]}], "$db": "app"}`,
		`{"insert": "p", "documents": [{"_id": 1, "at": ` + old + `}, {"_id": 2, "at": ` + old + `, "done": true}], "$db": "app"}`,
		`{"insert": "m", "documents": [{"_id": 1, "t": ` + date(48*time.Hour) + `}, {"_id": 2, "t": ` + fresh + `}], "$db": "app"}`,
	} {
		if reply := m.run(t, cmd); reply.Lookup("ok").Double() != 1 || reply.Lookup("writeErrors").Type != 0 {
			t.Fatalf("%s: %s", cmd, reply)
		}
	}

	m.want(t, `{"setParameter": 1, "ttlMonitorEnabled": false, "$db": "admin"}`, `{"was": true, "ok": 1.0}`)
	if n, err := m.RemoveExpired(t.Context()); n != 0 || err != nil {
		t.Fatalf("removed %d, %v while the monitor is off", n, err)
	}
	m.want(t, `{"setParameter": 1, "ttlMonitorEnabled": true, "$db": "admin"}`, `{"was": false, "ok": 1.0}`)
	m.node.view.Writable = false
	if n, err := m.RemoveExpired(t.Context()); n != 0 || err != nil {
		t.Fatalf("removed %d, %v on a secondary", n, err)
	}
	m.node.view.Writable = true
	before := len(m.entries(t))
	n, err := m.RemoveExpired(t.Context())
	if err != nil || n != 4 {
		t.Errorf("removed %d, %v, want 4", n, err)
	}
	var deleted []string
	for _, e := range m.entries(t)[before:] {
		deleted = append(deleted, fmt.Sprint(e.Lookup("op").StringValue(), " ", oplog.Namespace(e.Lookup("ns").StringValue())))
	}
	want := "[d app.c d app.c d app.p d app.system.buckets.m]"
	if got := fmt.Sprint(deleted); got != want {
		t.Errorf("logged %s, want %s", got, want)
	}
	m.want(t, `{"count": "c", "$db": "app"}`, `{"n": 3, "ok": 1.0}`)
	m.want(t, `{"count": "p", "$db": "app"}`, `{"n": 1, "ok": 1.0}`)
}
