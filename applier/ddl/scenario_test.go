package ddl_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// TestScenarios executes commands on a target and compares the resulting state.
//
//	start [dialect=V] [unique=serialized] [include=…] [exclude=…] [map=…] [placed]
//	log [once|maybe|copied|twice]   a line each: KIND NS {o} {o2}
//	defer INDEX                      the same, for DeferBuild
//	leave DB                        a view that was not copied
//	run DB [behind]                 a command of the target each line; with behind,
//	                                the catalog is not refreshed
//	show [overlay]                  the target's catalog, and the deferred specs
//	owed                            what the copy lacks, as read after a restart
//	end                             the end of the copy
//
// "log twice" executes each operation once, and then again, after a restart, as one that
// may have been executed; "log copied twice" does both on a copy. A file that names no
// dialect is run with two.
func TestScenarios(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"5.0", "7.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
				var b *bench
				datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
					if d.Cmd == "start" {
						b = start(t, d, dialect)
						return ""
					}
					return anyUUID.ReplaceAllString(b.scenario(t, d), "UUID")
				})
			})
		})
	}
}

var anyUUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

func start(t *testing.T, d *datadriven.TestData, dialect string) *bench {
	t.Helper()
	var names scope.Config
	unique, placed := ddl.Relaxed, false
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "dialect":
			dialect = arg.Vals[0]
		case "unique":
			unique = ddl.Serialized
		case "placed":
			placed = true
		case "include":
			names.Include = arg.Vals
		case "exclude":
			names.Exclude = arg.Vals
		case "map":
			for _, v := range arg.Vals {
				names.Map = append(names.Map, strings.Replace(v, ">", "=", 1))
			}
		default:
			d.Fatalf(t, "unknown argument %s", arg.Key)
		}
	}
	b := newBench(t, dialect, unique, names)
	b.cfg.Placed = placed
	b.restart(t)
	return b
}

func (b *bench) scenario(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var out strings.Builder
	switch d.Cmd {
	case "log":
		for line := range strings.Lines(d.Input) {
			b.apply(t, &out, d, line)
		}
	case "leave":
		def := bsongen.FromJSON(t, d.Input)
		if err := b.exec.LeaveView(t.Context(), d.CmdArgs[0].Key, def, "refused"); err != nil {
			fmt.Fprintf(&out, "%v\n", err)
		}
	case "defer":
		if err := b.exec.DeferBuild(t.Context(), b.operation(t, d.Input), d.CmdArgs[0].Key); err != nil {
			fmt.Fprintf(&out, "  %T: %v\n", err, err)
		}
		out.WriteString(b.told())
	case "run":
		for line := range strings.Lines(d.Input) {
			reply, err := b.Call(t.Context(), mongo.Command{DB: d.CmdArgs[0].Key, Body: bsongen.FromJSON(t, line)})
			if err == nil {
				var refused []mongo.WriteError
				if refused, err = mongo.WriteErrors(reply); len(refused) > 0 {
					err = &refused[0].Error
				}
			}
			if err != nil {
				fmt.Fprintf(&out, "%v\n", err)
			}
		}
		if !d.HasArg("behind") {
			b.restart(t)
		}
	case "show":
		b.show(t, &out, d.HasArg("overlay"))
	case "owed":
		b.restart(t)
		owed, err := b.exec.Missing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, owed)
	case "end":
		b.restart(t)
		b.optime++
		if err := b.exec.EndCopy(t.Context(), oplog.OpTime{TS: bson.Timestamp{T: 100, I: b.optime}}); err != nil {
			fmt.Fprintf(&out, "  %T: %v\n", err, err)
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return out.String()
}

// apply applies a line of the directive log.
func (b *bench) apply(t *testing.T, out *strings.Builder, d *datadriven.TestData, line string) {
	t.Helper()
	again := ddl.Once
	if d.HasArg("maybe") {
		again = ddl.Maybe
	}
	if d.HasArg("copied") {
		again = ddl.Copied
	}
	op := b.operation(t, strings.TrimSpace(line))
	if d.HasArg("early") {
		must.Succeed(t, must.Get(b.exec.HeadStart(t.Context(), op))(t).Run(t.Context(), t.Context()))
		return
	}
	if in, err := b.exec.InScope(op); err == nil && !in {
		out.WriteString("  out of scope\n")
	}
	if err := b.exec.Apply(t.Context(), op, again); err != nil {
		fmt.Fprintf(out, "  %T: %v\n", err, err)
	}
	out.WriteString(b.told())
	if d.HasArg("twice") {
		b.restart(t)
		if again == ddl.Once {
			again = ddl.Maybe
		}
		if err := b.exec.Apply(t.Context(), op, again); err != nil {
			fmt.Fprintf(out, "  again: %T: %v\n", err, err)
		}
		b.events = nil
	}
}

func (b *bench) show(t *testing.T, out *strings.Builder, overlay bool) {
	t.Helper()
	for _, c := range b.state(t, overlay).Collections {
		if c.NS.IsSystemViews() {
			continue
		}
		options := c.Options
		if c.NS.IsBuckets() { // their validator is long, and the server's own
			var d bson.D
			must.Succeed(t, bson.Unmarshal(options, &d))
			options = must.Marshal(t, slices.DeleteFunc(d, func(e bson.E) bool { return e.Key == "validator" }))
		}
		fmt.Fprintf(out, "%s %s %s\n", c.Type, c.NS, relaxed(options))
		for _, spec := range c.Indexes {
			if spec.Lookup("name").StringValue() != "_id_" {
				fmt.Fprintf(out, "  %s\n", relaxed(spec))
			}
		}
	}
	if overlay {
		return
	}
	deferred := must.Get(ddl.ReadDeferred(t.Context(), b, "replicator", "link"))(t)
	for _, h := range deferred {
		absent := ""
		if h.Absent {
			absent = " absent"
		}
		fmt.Fprintf(out, "deferred %s %q %v%s %s\n", h.NS, h.Index, h.Fields, absent, relaxed(h.Spec))
	}
	lacking := must.Get(ddl.ReadLacking(t.Context(), b, "replicator", "link"))(t)
	for i := range lacking.Views {
		v := &lacking.Views[i]
		fmt.Fprintf(out, "left out %s for %s: %s %s\n", v.NS, v.Name(), v.Why, relaxed(v.Def))
	}
	for _, h := range lacking.Indexes {
		fmt.Fprintf(out, "lacking the index %s of %s\n", h.Index, h.NS)
	}
	for _, o := range lacking.Options {
		fmt.Fprintf(out, "lacking the %s of %s\n", o.Name, o.NS)
	}
}

func relaxed(d bson.Raw) string {
	text, err := bson.MarshalExtJSON(d, false, false)
	if err != nil {
		return d.String()
	}
	return string(text)
}
