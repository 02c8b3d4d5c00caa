package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
)

// TestPlans reads operations, a line each: the mode (exact or copied), the kind (i,
// u, d, followed by + for b: true and by g for one of an applyOps), the namespace,
// the _id and, but for deletes, o.
func TestPlans(t *testing.T) {
	datadriven.Walk(t, "testdata/plans", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			opt := plan.Options{Coalesce: !d.HasArg("single"), InternalApply: d.HasArg("internal"), NoGuards: d.HasArg("no-guards")}
			d.MaybeScanArgs(t, "max-docs", &opt.MaxDocs)
			d.MaybeScanArgs(t, "max-bytes", &opt.MaxBytes)
			var ops []plan.Op
			for line := range strings.Lines(d.Input) {
				ops = append(ops, parseOp(t, strings.TrimSpace(line)))
			}
			if d.Cmd == "one" {
				w, err := plan.One(ops[0], opt)
				if err != nil {
					return "error: " + err.Error()
				}
				return show(&w)
			}
			p, err := plan.NewPlanner(opt).Build(ops)
			if err != nil {
				return "error: " + err.Error()
			}
			var out strings.Builder
			for i := range p.Writes {
				out.WriteString(show(&p.Writes[i]))
			}
			if len(p.Dropped) > 0 {
				fmt.Fprintf(&out, "dropped %v\n", p.Dropped)
			}
			return out.String()
		})
	})
}

func parseOp(t *testing.T, line string) plan.Op {
	t.Helper()
	f := strings.SplitN(line, " ", 5)
	op := plan.Op{Mode: map[string]plan.Mode{"exact": plan.ModeExact, "copied": plan.ModeCopied}[f[0]]}
	op.Kind = map[byte]oplog.Kind{'i': oplog.KindInsert, 'u': oplog.KindUpdate, 'd': oplog.KindDelete, 'n': oplog.KindNoop}[f[1][0]]
	op.Upsert, op.Grouped = strings.Contains(f[1], "+"), strings.Contains(f[1], "g")
	op.Target = oplog.Namespace(f[2])
	op.OpTime = oplog.OpTime{TS: bson.Timestamp{T: 7, I: 1}, Term: 1}
	name := op.Target.Collection()
	op.Collection = &catalog.Collection{
		NS: op.Target, Type: catalog.TypeCollection, Ordered: name == "ordered", Capped: name == "capped", Direct: name == "direct",
	}
	e, ok := rawbson.Lookup(bsongen.FromJSON(t, `{"_id":`+f[3]+`}`), "_id")
	if !ok {
		t.Fatal(line)
	}
	op.ID = e.Raw()
	if op.O = document(op.ID); len(f) > 4 {
		op.O = bsongen.FromJSON(t, f[4])
	}
	return op
}

func show(w *plan.Write) string {
	kind := [...]string{plan.Insert: "insert", plan.Update: "update", plan.Delete: "delete", plan.Modify: "modify"}[w.Kind]
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s", kind, w.NS)
	for _, flag := range []struct {
		on   bool
		name string
	}{{w.Ordered, " ordered"}, {w.MustMatch, " must-match"}, {w.Guarded, " guarded"}} {
		if flag.on {
			out.WriteString(flag.name)
		}
	}
	out.WriteByte('\n')
	for i, list := range w.Ops {
		fmt.Fprintf(&out, "  %v", list)
		if w.Kind != plan.Modify {
			out.WriteString(" " + w.Docs[i].String())
		}
		out.WriteByte('\n')
	}
	return strings.NewReplacer(`{"$numberInt":"1"}`, "1", `{"$numberInt":"2"}`, "2", `{"$numberInt":"3"}`, "3", `{"$numberInt":"4"}`, "4").Replace(out.String())
}

func TestCommand(t *testing.T) {
	for _, tc := range []struct {
		w              plan.Write
		body, sequence string
	}{
		{plan.Write{Kind: plan.Insert, NS: "db.a.b"}, `{"insert":"a.b","ordered":false,"bypassDocumentValidation":true}`, "documents"},
		{plan.Write{Kind: plan.Update, NS: "db.a", Ordered: true}, `{"update":"a","ordered":true,"bypassDocumentValidation":true}`, "updates"},
		{plan.Write{Kind: plan.Delete, NS: "db.a"}, `{"delete":"a","ordered":false}`, "deletes"},
	} {
		body, sequence := tc.w.Command()
		if sequence != tc.sequence || string(body) != string(bsongen.FromJSON(t, tc.body)) {
			t.Errorf("%s %s, want %s %s", body, sequence, tc.body, tc.sequence)
		}
	}
	if body, sequence := (&plan.Write{Kind: plan.Modify}).Command(); body != nil || sequence != "" {
		t.Error("a command for what is none:", body)
	}
}

func TestReplace(t *testing.T) {
	for _, tc := range []struct {
		id, doc string
		upsert  bool
		want    string
	}{
		{`1`, `{"_id":1,"a":1}`, false, `{"q":{"_id":1},"u":{"_id":1,"a":1}}`},
		{`1`, `{"_id":1}`, true, `{"q":{"_id":1},"u":{"_id":1},"upsert":true}`},
		{`1`, `{"_id":1,"$a":1}`, true, `{"q":{"_id":1},"u":[{"$replaceWith":{"$literal":{"_id":1,"$a":1}}}],"upsert":true}`},
		{`1`, `{"_id":1,"t":{"$timestamp":{"t":0,"i":0}}}`, false, `{"q":{"_id":1},"u":[{"$replaceWith":{"$literal":{"_id":1,"t":{"$timestamp":{"t":0,"i":0}}}}}]}`},
		{`1`, `{"_id":1,"a":{"t":{"$timestamp":{"t":0,"i":0}},"$b":1}}`, false, `{"q":{"_id":1},"u":{"_id":1,"a":{"t":{"$timestamp":{"t":0,"i":0}},"$b":1}}}`},
		{`{"$timestamp":{"t":0,"i":0}}`, `{"_id":{"$timestamp":{"t":0,"i":0}}}`, false, `{"q":{"_id":{"$timestamp":{"t":0,"i":0}}},"u":{"_id":{"$timestamp":{"t":0,"i":0}}}}`},
		{`{"a":1}`, `{"_id":{"a":1}}`, false, `{"q":{"_id":{"a":1}},"u":{"_id":{"a":1}}}`},
		{`{"$x":1}`, `{"_id":{"$x":1}}`, false, `{"q":{"_id":{"$eq":{"$x":1}}},"u":{"_id":{"$x":1}}}`},
		{`{"$regularExpression":{"pattern":"a","options":""}}`, `{"_id":1}`, false, `{"q":{"_id":{"$eq":{"$regularExpression":{"pattern":"a","options":""}}}},"u":{"_id":1}}`},
	} {
		id, _ := rawbson.Lookup(bsongen.FromJSON(t, `{"_id":`+tc.id+`}`), "_id")
		got := plan.Replace(id.Raw(), bsongen.FromJSON(t, tc.doc), tc.upsert)
		if want := bsongen.FromJSON(t, tc.want); string(got) != string(want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A run of deltas that cannot be composed or compiled is sent unchanged, without
// superfluous work.
func TestManyUpdatesOfOneDocument(t *testing.T) {
	var ops []plan.Op
	for i := range 20_000 {
		ops = append(ops, parseOp(t, fmt.Sprintf(`exact u db.a 1 {"$v":2,"diff":{"sv":{"a":true,"u%d":%d}}}`, i, i)))
	}
	p, err := plan.NewPlanner(plan.Options{Coalesce: true}).Build(ops)
	if err != nil || len(p.Writes) != 1 || len(p.Writes[0].Docs) != 1 {
		t.Fatalf("%v, %d writes", err, len(p.Writes))
	}
	binary := `{"$v":2,"diff":{"b":{"f":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"07"}}}}}}`
	for i := range ops {
		ops[i] = parseOp(t, "exact u db.a 1 "+binary)
	}
	if p, err = plan.NewPlanner(plan.Options{Coalesce: true}).Build(ops); err != nil || len(p.Writes) != len(ops) || p.Writes[7].Kind != plan.Modify {
		t.Fatalf("%v, %d writes", err, len(p.Writes))
	}
}

// The result of a run is still available when it is sent, whatever runs on other
// documents lie in between.
func TestRunsInTurns(t *testing.T) {
	run := func(id int) []plan.Op {
		var ops []plan.Op
		for _, o := range []string{`{"sa":{"a":true,"u25":1}}`, `{"u":{"x":1},"sa":{"a":true,"l":25}}`, `{"u":{"x":2}}`, `{"sb":{"u":{"c":1}}}`} {
			ops = append(ops, parseOp(t, fmt.Sprintf(`exact u db.a %d {"$v":2,"diff":%s}`, id, o)))
		}
		return ops
	}
	var ops []plan.Op
	var want []string
	runs := make([][]plan.Op, 9)
	for id := range runs {
		runs[id] = run(id)
		if id%3 > 0 { // composed to one, so that none has to wait
			runs[id] = runs[id][2:]
		}
		for _, w := range planned(t, runs[id]).Writes {
			for _, doc := range w.Docs {
				want = append(want, doc.String())
			}
		}
	}
	for i := range 4 {
		for _, run := range runs {
			if i < len(run) {
				ops = append(ops, run[i])
			}
		}
	}
	var got []string
	for _, w := range planned(t, ops).Writes {
		for _, doc := range w.Docs {
			got = append(got, doc.String())
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("in turns %s\none by one %s", got, want)
	}
	if len(want) < 12 {
		t.Errorf("%d statements: nothing is left in two", len(want))
	}
}

// An update that cannot be folded into its document is sent unchanged.
func TestRunIntoDocumentThatFails(t *testing.T) {
	binary := `{"$v":2,"diff":{"b":{"f":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"07"}}}}}}`
	got := planned(t, []plan.Op{
		parseOp(t, `exact i db.a 1 {"_id":1,"f":"no binary data"}`), parseOp(t, "exact u db.a 1 "+binary),
		parseOp(t, `exact i db.a 2 {"_id":2}`), parseOp(t, "exact u db.a 1 "+binary),
	})
	var kinds []plan.Kind
	for _, w := range got.Writes {
		kinds = append(kinds, w.Kind)
	}
	if want := []plan.Kind{plan.Insert, plan.Modify, plan.Modify}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %v, want %v", kinds, want)
	}
}

func planned(t *testing.T, ops []plan.Op) plan.Plan {
	t.Helper()
	p, err := plan.NewPlanner(plan.Options{Coalesce: true}).Build(ops)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
