package oplog_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/oplog"
)

func TestOpTimeOrder(t *testing.T) {
	const none = oplog.UninitializedTerm
	at := oplog.NewOpTime
	for _, tc := range []struct {
		a, b oplog.OpTime
		want int
	}{
		{at(1, 1, 1), at(1, 1, 1), 0},
		{at(1, 1, 1), at(1, 2, 1), -1},
		{at(1, 9, 1), at(2, 1, 1), -1},
		{at(9, 9, 1), at(1, 1, 2), -1},   // the term is compared first
		{at(9, 9, none), at(1, 1, 2), 1}, // unless one has none
		{at(1, 1, 2), at(1, 1, none), 0},
		{at(0, 0, none), at(0, 0, 0), 0},
		{at(1<<31, 0, 1), at(1, 0, 1), 1}, // seconds are unsigned
	} {
		if got := tc.a.Compare(tc.b); got != tc.want {
			t.Errorf("%s against %s is %d, want %d", tc.a, tc.b, got, tc.want)
		}
		if got := tc.b.Compare(tc.a); got != -tc.want {
			t.Errorf("%s against %s is %d, want %d", tc.b, tc.a, got, -tc.want)
		}
		if tc.a.Before(tc.b) != (tc.want < 0) || tc.a.After(tc.b) != (tc.want > 0) || tc.a.Equal(tc.b) != (tc.want == 0) {
			t.Errorf("Before, After or Equal of %s and %s disagree with Compare", tc.a, tc.b)
		}
	}
	if !at(0, 0, none).IsNull() || !(oplog.OpTime{}).IsNull() || at(0, 1, 0).IsNull() {
		t.Error("IsNull is wrong")
	}
}

func TestOpTimeTextAndBSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := oplog.NewOpTime(rapid.Uint32().Draw(t, "seconds"), rapid.Uint32().Draw(t, "inc"), rapid.Int64().Draw(t, "term"))
		back, err := oplog.ParseOpTime(o.String())
		if err != nil || back != o {
			t.Fatalf("%s reads back as %s, %v", o, back, err)
		}
		raw, err := bson.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		back = oplog.OpTime{}
		if err := bson.Unmarshal(raw, &back); err != nil || back != o {
			t.Fatalf("%s reads back from %s as %s, %v", o, bson.Raw(raw), back, err)
		}
	})
	if o, err := oplog.ParseOpTime("17:4"); err != nil || o != oplog.NewOpTime(17, 4, oplog.UninitializedTerm) {
		t.Errorf("without a term: %s, %v", o, err)
	}
	for _, s := range []string{"", "17", "17:", ":4", "17:4 t", "17:4 tx", "x:4", "4294967296:1", "17:4t5", "-1:2"} {
		if o, err := oplog.ParseOpTime(s); err == nil {
			t.Errorf("%q reads as %s", s, o)
		}
	}
}

func TestUUID(t *testing.T) {
	u := oplog.UUID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	if u.IsZero() || u.String() != "00010203-0405-0607-0809-0a0b0c0d0e0f" {
		t.Errorf("%s", u)
	}
	if b := u.Binary(); b.Subtype != 4 || len(b.Data) != 16 || b.Data[15] != 15 {
		t.Errorf("as BSON it is %v", b)
	}
	if !(oplog.UUID{}).IsZero() {
		t.Error("the zero UUID is not zero")
	}
}

func TestNamespace(t *testing.T) {
	for _, tc := range []struct {
		ns                                     oplog.Namespace
		db, coll                               string
		isCollection, isCommand, views, bucket bool
	}{
		{"a.b", "a", "b", true, false, false, false},
		{"a.b.c", "a", "b.c", true, false, false, false},
		{"a.$cmd", "a", "$cmd", true, true, false, false},
		{"a.b.$cmd", "a", "b.$cmd", true, false, false, false},
		{".$cmd", "", "$cmd", false, false, false, false},
		{".system.views", "", "system.views", false, false, true, false},
		{"system.views", "system", "views", true, false, false, false},
		{"a.system.views", "a", "system.views", true, false, true, false},
		{"a.b.system.views", "a", "b.system.views", true, false, false, false},
		{"a.system.buckets.m", "a", "system.buckets.m", true, false, false, true},
		{"", "", "", false, false, false, false},
		{"a", "a", "", false, false, false, false},
		{"a.", "a", "", false, false, false, false},
	} {
		n := tc.ns
		if n.DB() != tc.db || n.Collection() != tc.coll || n.IsCollection() != tc.isCollection ||
			n.IsCommand() != tc.isCommand || n.IsSystemViews() != tc.views || n.IsBuckets() != tc.bucket {
			t.Errorf("%q: %q %q %t %t %t %t", n, n.DB(), n.Collection(), n.IsCollection(), n.IsCommand(), n.IsSystemViews(), n.IsBuckets())
		}
	}
	if n := oplog.Namespace("a.b"); n.Clone() != n {
		t.Error("a clone differs")
	}
	if n := oplog.NewNamespace("a", "m").Buckets(); n != "a.system.buckets.m" {
		t.Error(n)
	}
	for n, want := range map[oplog.Namespace]oplog.Namespace{
		"a.system.buckets.m.n": "a.m.n", "a.system.buckets.": "a.", "a.m": "a.m", "a": "a", "": "",
	} {
		if n.Series() != want {
			t.Errorf("%q: %q", n, n.Series())
		}
	}
}

// TestNamespaceParts: the predicates agree with splitting the name at its first
// dot.
func TestNamespaceParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.SampledFrom([]string{".", "a", "$cmd", "system", "views", "system.views", "x"}), 0, 6)
		n := oplog.Namespace(strings.Join(parts.Draw(t, "parts"), ""))
		db, coll, _ := strings.Cut(string(n), ".")
		if n.IsCollection() != (db != "" && coll != "") || n.IsCommand() != (db != "" && coll == "$cmd") || n.IsSystemViews() != (coll == "system.views") {
			t.Fatalf("%q: %t %t %t", n, n.IsCollection(), n.IsCommand(), n.IsSystemViews())
		}
	})
}

func TestMemberState(t *testing.T) {
	names := map[oplog.MemberState]string{
		0: "STARTUP", 1: "PRIMARY", 2: "SECONDARY", 3: "RECOVERING", 4: "MemberState(4)", 5: "STARTUP2",
		6: "UNKNOWN", 7: "ARBITER", 8: "DOWN", 9: "ROLLBACK", 10: "REMOVED", 11: "MemberState(11)",
	}
	for s, name := range names {
		if s.String() != name {
			t.Errorf("state %d is %s, want %s", int(s), s, name)
		}
		if s.Readable() != (name == "PRIMARY" || name == "SECONDARY") {
			t.Errorf("%s readable: %t", s, s.Readable())
		}
	}
}
