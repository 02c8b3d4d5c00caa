package serverquery_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
)

const recordings = "../../testdata/corpus"

func transcript(t testing.TB, name string) []corpus.Command {
	t.Helper()
	scenarios, err := corpus.Open(filepath.Join(recordings, name))
	if err != nil {
		t.Fatal(err)
	}
	var out []corpus.Command
	for c, err := range scenarios[0].Commands() {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

func extJSON(v bson.RawValue) string { return v.String() }

func docsOf(v bson.RawValue) []bson.Raw {
	array, ok := v.ArrayOK()
	if !ok {
		return nil
	}
	vals, _ := bson.Raw(array).Values()
	var out []bson.Raw
	for _, v := range vals {
		out = append(out, v.Document())
	}
	return out
}

func show(docs []bson.Raw) []string {
	out := []string{}
	for _, d := range docs {
		out = append(out, d.String())
	}
	return out
}

func number(c bson.Raw, name string) int {
	n, _ := c.Lookup(name).AsInt64OK()
	return int(n)
}

func document(v bson.RawValue) bson.Raw {
	doc, _ := v.DocumentOK()
	return doc
}

// read runs a read of the transcript. It is false for what is refused or
// answered before the query language comes in.
func read(c bson.Raw, data map[string][]bson.Raw) (docs []bson.Raw, handled bool, err error) {
	first, _ := c.IndexErr(0)
	ns, _ := first.Value().StringValueOK()
	for _, name := range []string{"nonsense", "tailable", "hint", "readConcern", "getMore"} {
		if _, err := c.LookupErr(name); err == nil {
			return nil, false, nil
		}
	}
	if number(c, "limit") < 0 {
		return nil, false, nil
	}
	switch first.Key() {
	case "find":
		docs, err = find(c, data[ns])
		if c.Lookup("filter").Type == bson.TypeInt32 || ns == "" {
			return nil, false, nil
		}
	case "count":
		var m *serverquery.Matcher
		if m, err = serverquery.Compile(document(c.Lookup("query")), serverquery.Options{}); err == nil {
			docs, err = matching(m, data[ns])
		}
	case "distinct":
		docs, err = distinct(c, data[ns])
	case "aggregate":
		if c.Lookup("cursor").Type == 0 {
			return nil, false, nil
		}
		docs, err = aggregate(c, data[ns])
	case "create":
		if c.Lookup("pipeline").Type == 0 {
			return nil, false, nil
		}
		var stages []bson.Raw
		if stages, err = serverquery.Stages(c.Lookup("pipeline")); err == nil {
			err = serverquery.CheckPipeline(stages, serverquery.Options{})
		}
	default:
		return nil, false, nil
	}
	return docs, true, err
}

func matching(m *serverquery.Matcher, docs []bson.Raw) (out []bson.Raw, err error) {
	for _, doc := range docs {
		ok, err := m.Match(doc)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, doc)
		}
	}
	return out, nil
}

func find(c bson.Raw, docs []bson.Raw) ([]bson.Raw, error) {
	m, err := serverquery.Compile(document(c.Lookup("filter")), serverquery.Options{})
	if err != nil {
		return nil, err
	}
	s, err := serverquery.CompileSort(document(c.Lookup("sort")), serverquery.Options{})
	if err != nil {
		return nil, err
	}
	p, err := serverquery.CompileProjection(document(c.Lookup("projection")), serverquery.Options{})
	if err != nil {
		return nil, err
	}
	out, err := matching(m, docs)
	if err != nil {
		return nil, err
	}
	if err := s.Docs(out); err != nil {
		return nil, err
	}
	out = out[min(number(c, "skip"), len(out)):]
	for _, name := range []string{"limit", "batchSize"} {
		if n := number(c, name); n > 0 {
			out = out[:min(n, len(out))]
		}
	}
	for i := range out {
		if out[i], err = p.Apply(out[i], -1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func distinct(c bson.Raw, docs []bson.Raw) ([]bson.Raw, error) {
	m, err := serverquery.Compile(document(c.Lookup("query")), serverquery.Options{})
	if err != nil {
		return nil, err
	}
	out, err := matching(m, docs)
	d := serverquery.NewDistinct(c.Lookup("key").StringValue(), serverquery.Options{})
	for _, doc := range out {
		d.Add(doc)
	}
	vals, _ := bson.Marshal(bson.D{{Key: "values", Value: d.Values()}})
	return []bson.Raw{vals}, err
}

func aggregate(c bson.Raw, docs []bson.Raw) (out []bson.Raw, err error) {
	stages, err := serverquery.Stages(c.Lookup("pipeline"))
	if err != nil {
		return nil, err
	}
	p, err := serverquery.CompilePipeline(stages, serverquery.PipelineOptions{})
	if err != nil {
		return nil, err
	}
	for doc, err := range p.Run(slices.Values(docs)) {
		if err != nil {
			return nil, err
		}
		out = append(out, doc)
	}
	if n := number(document(c.Lookup("cursor")), "batchSize"); n > 0 {
		out = out[:min(n, len(out))]
	}
	return out, nil
}

// What a server answered to the reads of a transcript, this package answers too,
// until the data changes under them.
func TestRecordedReads(t *testing.T) {
	commands := transcript(t, "commands")
	data := map[string][]bson.Raw{}
	for i, c := range commands[:2] {
		data[[]string{"a", "mixed"}[i]] = docsOf(c.Command.Lookup("documents"))
	}
	reads, refusals := 0, 0
	for i, c := range commands[2:115] {
		docs, handled, err := read(c.Command, data)
		if !handled {
			continue
		}
		first, _ := c.Command.IndexErr(0)
		if c.Error != nil {
			code, _ := c.Error.Lookup("code").AsInt64OK()
			if first.Key() == "create" && code != 40324 {
				continue
			}
			e, ok := errors.AsType[*servererr.Error](err)
			if !ok || int64(e.Code) != code || e.Message != c.Error.Lookup("errmsg").StringValue() {
				t.Errorf("line %d: %v: error %v, want %v", i+3, c.Command, err, c.Error)
			}
			refusals++
			continue
		}
		if err != nil {
			t.Errorf("line %d: %v: %v", i+3, c.Command, err)
			continue
		}
		want := docsOf(c.Reply.Lookup("cursor", "firstBatch"))
		switch first.Key() {
		case "create":
			continue
		case "count":
			if n, _ := c.Reply.Lookup("n").AsInt64OK(); int(n) != len(docs) {
				t.Errorf("line %d: %d documents, want %d", i+3, len(docs), n)
			}
			reads++
			continue
		case "distinct":
			vals, _ := bson.Marshal(bson.D{{Key: "values", Value: c.Reply.Lookup("values")}})
			want = []bson.Raw{vals}
		case "find":
			if ns, _ := first.Value().StringValueOK(); ns == "v" {
				continue // a view
			}
		}
		if diff := cmp.Diff(show(want), show(docs)); diff != "" {
			t.Errorf("line %d: %v (-want +got):\n%s", i+3, c.Command, diff)
		}
		reads++
	}
	t.Logf("%d reads and %d refusals are as recorded", reads, refusals)
	if reads < 20 || refusals < 5 {
		t.Errorf("only %d reads and %d refusals of the transcript were compared", reads, refusals)
	}
}

// Every filter that a driver sent compiles, and the validators explain
// themselves as the server did.
func TestRecordedFilters(t *testing.T) {
	scenarios, err := corpus.Open(recordings)
	if err != nil {
		t.Fatal(err)
	}
	filters, failures := 0, 0
	for _, s := range scenarios {
		var validator *serverquery.Validator
		for c, err := range s.Commands() {
			if err != nil {
				break // a recording without a transcript
			}
			if spec := document(c.Command.Lookup("validator")); c.Error == nil && len(spec) > 0 {
				if validator, err = serverquery.CompileValidator(spec, serverquery.Options{}); err != nil {
					t.Errorf("%s: %v: %v", s.Dir, spec, err)
				}
			}
			for _, name := range []string{"updates", "deletes"} {
				for _, u := range docsOf(c.Command.Lookup(name)) {
					filters++
					if _, err := serverquery.Compile(document(u.Lookup("q")), serverquery.Options{}); err != nil {
						t.Errorf("%s: %v: %v", s.Dir, u, err)
					}
				}
			}
			for i, e := range docsOf(c.Reply.Lookup("writeErrors")) {
				if n := number(e, "code"); n != 121 || i > 0 {
					continue
				}
				doc := docsOf(c.Command.Lookup("documents"))[number(e, "index")]
				got, _ := errors.AsType[*servererr.Error](validator.Check(doc))
				if got == nil || got.Code != 121 || got.Message != e.Lookup("errmsg").StringValue() {
					t.Fatalf("%v: %v", doc, got)
				}
				if diff := cmp.Diff(extJSON(e.Lookup("errInfo")), extJSON(got.Info.Lookup("errInfo"))); diff != "" {
					t.Errorf("%v (-want +got):\n%s", doc, diff)
				}
				failures++
			}
		}
	}
	t.Logf("%d filters compile, %d failed validations are explained as recorded", filters, failures)
	if filters < 1000 || failures == 0 {
		t.Errorf("only %d filters and %d failed validations were found", filters, failures)
	}
}
