package serverupdate_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
)

// TestRecordings runs the statements of the recorded transcripts on the documents
// that the server ran them on, and compares with what the server stored, what it
// logged, and what it refused in which words. The documents come from the log, the
// statements do not.
func TestRecordings(t *testing.T) {
	scenarios, err := corpus.Open("../../testdata/corpus")
	if err != nil {
		t.Fatal(err)
	}
	tallies := make([]*tally, len(scenarios))
	t.Run("scenario", func(t *testing.T) {
		for i, s := range scenarios {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				tallies[i] = judge(t, &s)
			})
		}
	})
	var total tally
	for _, part := range tallies {
		if part == nil {
			t.Skip("only some scenarios were run")
		}
		total.add(part)
	}
	t.Log(&total)
	// A little less than there is, lest this test judges nothing one day.
	least := tally{
		modifiers: 3800, pipelines: 220, replacements: 420, deltas: 3100, old: 28, upserts: 940, inserts: 3000,
		images: 70, noOps: 250, refusals: 105,
	}
	for name, counts := range map[string][2]int{
		"modifiers": {total.modifiers, least.modifiers}, "pipelines": {total.pipelines, least.pipelines},
		"replacements": {total.replacements, least.replacements}, "deltas": {total.deltas, least.deltas},
		"$v: 1 entries": {total.old, least.old}, "upserts": {total.upserts, least.upserts},
		"inserts": {total.inserts, least.inserts}, "images": {total.images, least.images},
		"no-ops": {total.noOps, least.noOps}, "refusals": {total.refusals, least.refusals},
	} {
		if counts[0] < counts[1] {
			t.Errorf("too little was judged: %d %s, want %d", counts[0], name, counts[1])
		}
	}
}

// tally counts the compared updates.
type tally struct {
	modifiers, pipelines, replacements int
	// deltas and old are the entries of modifiers that were compared.
	deltas, old int
	// images is how many replies showed the document before or after.
	images int
	// noOps are updates that were not logged, refusals those that failed.
	upserts, inserts, noOps, refusals int
	// elsewhere are refusals by what this package is no part of.
	elsewhere int
}

func (c *tally) add(d *tally) {
	c.modifiers += d.modifiers
	c.pipelines += d.pipelines
	c.replacements += d.replacements
	c.deltas += d.deltas
	c.old += d.old
	c.images += d.images
	c.upserts += d.upserts
	c.inserts += d.inserts
	c.noOps += d.noOps
	c.refusals += d.refusals
	c.elsewhere += d.elsewhere
}

func (c *tally) count(k serverupdate.Kind) {
	switch k {
	case serverupdate.Pipeline:
		c.pipelines++
	case serverupdate.Modifiers:
		c.modifiers++
	default:
		c.replacements++
	}
}

func (c *tally) String() string {
	return fmt.Sprintf("%d updates judged: %d modifiers (%d deltas and %d $v: 1 entries compared), %d pipelines, %d replacements; "+
		"%d upserts, %d inserts, %d no-ops, %d refusals, %d images in replies; %d refusals by indexes and others",
		c.modifiers+c.pipelines+c.replacements, c.modifiers, c.deltas, c.old, c.pipelines, c.replacements,
		c.upserts, c.inserts, c.noOps, c.refusals, c.images, c.elsewhere)
}

// judge pairs the statements of a scenario's transcript with the entries that
// they caused. Each such entry has to have its statement, and each modified
// document of a reply its entry.
func judge(t *testing.T, s *corpus.Scenario) *tally {
	log := replay(t, s)
	c := &tally{}
	var now bson.Timestamp // of the last reply
	for cmd, err := range s.Commands() {
		if errors.Is(err, fs.ErrNotExist) {
			t.Log("it has no transcript")
			return c
		}
		if err != nil {
			t.Fatal(err)
		}
		if sec, inc, ok := cmd.Reply.Lookup("operationTime").TimestampOK(); ok {
			now = bson.Timestamp{T: sec, I: inc}
		}
		c.judgeInserts(t, &cmd, log)
		for _, st := range statementsOf(t, &cmd) {
			changes := log.take(&cmd, &st)
			for _, ch := range changes {
				c.judgeChange(t, &st, ch)
				c.judgeImage(t, &cmd, ch)
			}
			if refusal, ok := refusalOf(&cmd, st.index); ok {
				c.judgeRefusal(t, &st, refusal, log.at(st.ns, st.id(), now))
				continue
			}
			if matched, ok := matchedOne(&cmd); ok && len(changes) == 0 {
				if doc := log.at(st.ns, st.id(), now); matched && doc != nil {
					c.judgeNoOp(t, &st, doc)
				}
			}
		}
	}
	for _, ch := range log.left() {
		t.Errorf("entry %s: its statement is not in the transcript", ch.at)
	}
	return c
}

// surroundings are the options that the statement ran with. What the server made
// up is taken from the document that it stored.
func surroundings(st *statement, post bson.Raw) serverupdate.Options {
	o := serverupdate.Options{
		ArrayFilters: st.filters,
		Multi:        st.multi,
		Match:        match,
		Clock:        func() bson.DateTime { ms, _ := post.Lookup("now").DateTimeOK(); return bson.DateTime(ms) },
		NewID:        func() bson.ObjectID { id, _ := post.Lookup("_id").ObjectIDOK(); return id },
	}
	var stamps []bson.Timestamp
	for it := rawbson.NewIter(post); it.Next(); {
		if ts, ok := it.Timestamp(); ok && !it.Is("_id") {
			stamps = append(stamps, ts)
		}
	}
	if len(stamps) > 0 {
		o.Tick = func() bson.Timestamp {
			next := stamps[0]
			stamps = append(stamps[1:], next)
			return next
		}
	}
	return o
}

// judgeInserts compares the documents of an insert with what the log says that was
// inserted, and those that were refused for what they are.
func (c *tally) judgeInserts(t *testing.T, cmd *corpus.Command, log *history) {
	t.Helper()
	for i, st := range insertsOf(cmd) {
		want, refused := refusalOf(cmd, i)
		if refused && (want.command || want.elsewhere()) {
			continue
		}
		ch, logged := log.numbered[st.sid]
		if !refused && (!logged || !st.numbered) {
			continue
		}
		delete(log.numbered, st.sid)
		got, err := surroundings(&st, ch.post).CheckInsert(st.u.Document())
		c.inserts++
		if !refused && (err != nil || !bytes.Equal(got, ch.post)) {
			t.Errorf("entry %s: insert of %s:\n got %s, error %v\nwant %s", ch.at, st.u, got, err, ch.post)
		}
		e, ok := errors.AsType[*serverupdate.Error](err)
		if refused && (!ok || int64(e.Code) != want.code || e.Message != want.message) {
			t.Errorf("insert of %s: got %s, error %v, want code %d: %s", st.u, got, err, want.code, want.message)
		}
	}
}

func (c *tally) judgeChange(t *testing.T, st *statement, ch change) {
	t.Helper()
	o := surroundings(st, ch.post)
	if ch.pre == nil {
		c.judgeUpsert(t, st, o, ch)
		return
	}
	version, _ := ch.o.Lookup("$v").AsInt64OK()
	o.Log = serverupdate.LogDelta
	if version == 1 {
		o.Log = serverupdate.LogModifiers
	}
	s, err := serverupdate.Compile(st.u, o)
	if err != nil {
		t.Errorf("entry %s: %s: %v", ch.at, st.u, err)
		return
	}
	got, err := s.Apply(ch.pre, serverupdate.NoMatch)
	if err != nil {
		t.Errorf("entry %s: %s on %s: %v", ch.at, st.u, ch.pre, err)
		return
	}
	c.count(got.Kind)
	if !bytes.Equal(got.Doc, ch.post) || got.NoOp {
		t.Errorf("entry %s: %s on %s:\n got %s, %x\nwant %s, %x", ch.at, st.u, ch.pre, got.Doc, []byte(got.Doc), ch.post, []byte(ch.post))
	}
	if got.Kind != serverupdate.Modifiers {
		return
	}
	made, logged := got.Modifiers, ch.o
	if version == 1 {
		c.old++
	} else {
		c.deltas++
		made, logged = got.Delta, ch.o.Lookup("diff").Value
	}
	if !bytes.Equal(made, logged) {
		t.Errorf("entry %s: %s on %s:\n   logs %s, %x\nwant %s, %x", ch.at, st.u, ch.pre, made, []byte(made), logged, []byte(logged))
	}
}

func (c *tally) judgeUpsert(t *testing.T, st *statement, o serverupdate.Options, ch change) {
	t.Helper()
	s, err := serverupdate.Compile(st.u, o)
	if err != nil {
		t.Errorf("entry %s: %s: %v", ch.at, st.u, err)
		return
	}
	got, err := s.Upsert(equalities(st.q))
	if err != nil || !bytes.Equal(got, ch.post) {
		t.Errorf("entry %s: upsert of %s for %s:\n got %s, error %v\nwant %s", ch.at, st.u, st.q, got, err, ch.post)
	}
	c.upserts++
	c.count(s.Kind())
}

func (c *tally) judgeNoOp(t *testing.T, st *statement, doc bson.Raw) {
	t.Helper()
	s, err := serverupdate.Compile(st.u, surroundings(st, doc))
	if err != nil {
		t.Errorf("%s: %v", st.u, err)
		return
	}
	got, err := s.Apply(doc, serverupdate.NoMatch)
	if err != nil || !got.NoOp || !bytes.Equal(got.Doc, doc) {
		t.Errorf("%s on %s does nothing on a server; got %s, error %v", st.u, doc, got.Doc, err)
	}
	c.noOps++
}

func (c *tally) judgeRefusal(t *testing.T, st *statement, want refusal, doc bson.Raw) {
	t.Helper()
	if want.elsewhere() {
		c.elsewhere++
		return
	}
	const executor = "Plan executor error during findAndModify :: caused by :: "
	wrap := ""
	s, err := serverupdate.Compile(st.u, surroundings(st, doc))
	switch {
	case err != nil:
	case doc != nil:
		_, err = s.Apply(doc, serverupdate.NoMatch)
		if want.command {
			wrap = executor
		}
	case st.upsert:
		_, err = s.Upsert(equalities(st.q))
	}
	refused, ok := errors.AsType[*serverupdate.Error](err)
	if !ok || int64(refused.Code) != want.code || wrap+refused.Message != want.message {
		t.Errorf("%s on %s: got %v, want code %d: %s", st.u, doc, err, want.code, want.message)
	}
	c.refusals++
}

// judgeImage compares the document in the reply of a findAndModify with that of
// the log: a check on the judge's own evidence.
func (c *tally) judgeImage(t *testing.T, cmd *corpus.Command, ch change) {
	t.Helper()
	got, ok := cmd.Reply.Lookup("value").DocumentOK()
	if _, err := cmd.Command.LookupErr("fields"); !ok || err == nil {
		return
	}
	want := ch.pre
	if after, _ := cmd.Command.Lookup("new").BooleanOK(); after {
		want = ch.post
	}
	c.images++
	if !bytes.Equal(got, want) {
		t.Errorf("entry %s: the reply shows %s, the log leads to %s", ch.at, got, want)
	}
}

// equalities are those of a query whose fields are values or $eq.
func equalities(q bson.Raw) []serverupdate.Equality {
	var out []serverupdate.Equality
	for it := rawbson.NewIter(q); it.Next(); {
		if doc, ok := it.Document(); ok && strings.HasPrefix(firstKey(doc), "$") {
			continue
		}
		out = append(out, serverupdate.Equality{Path: string(it.Key), Value: it.Raw()})
	}
	return out
}

// match knows the queries that the recorded $pull and array filters have: a path
// with a value or with $gte.
func match(filter bson.RawValue) (serverupdate.Matcher, error) {
	var tests []func(bson.RawValue) bool
	for it := rawbson.NewIter(filter.Value); it.Next(); {
		path, want, gte := strings.Split(string(it.Key), "."), it.Raw(), false
		if doc, ok := it.Document(); ok && strings.HasPrefix(firstKey(doc), "$") {
			if firstKey(doc) != "$gte" {
				return nil, fmt.Errorf("not understood here: %s", filter)
			}
			want, gte = doc.Lookup("$gte"), true
		}
		tests = append(tests, func(doc bson.RawValue) bool { return meets(doc, path, want, gte) })
	}
	return func(doc bson.RawValue) (bool, error) {
		for _, holds := range tests {
			if !holds(doc) {
				return false, nil
			}
		}
		return true, nil
	}, nil
}

func meets(v bson.RawValue, path []string, want bson.RawValue, gte bool) bool {
	if v.Type == bson.TypeArray {
		for it := rawbson.NewIter(v.Value); it.Next(); {
			if e := it.Raw(); (len(path) == 0 || e.Type == bson.TypeEmbeddedDocument) && meetsValue(e, path, want, gte) {
				return true
			}
		}
	}
	return meetsValue(v, path, want, gte)
}

func meetsValue(v bson.RawValue, path []string, want bson.RawValue, gte bool) bool {
	if len(path) > 0 {
		e, ok := rawbson.Lookup(v.Value, path[0])
		return ok && (v.Type == bson.TypeEmbeddedDocument || v.Type == bson.TypeArray) && meets(e.Raw(), path[1:], want, gte)
	}
	c := bsonorder.Compare(v, want, nil)
	return c == 0 || gte && c > 0 && bsonorder.Rank(v.Type) == bsonorder.Rank(want.Type)
}
