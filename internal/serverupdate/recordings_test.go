package serverupdate_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/corpus"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/oplog/update"
)

// notModelled are the refusals that a statement which the server ran may meet
// here. Any other refusal of such a statement is a fault.
var notModelled = []string{
	`operator "$addToSet"`, `operator "$bit"`, `operator "$currentDate"`, `operator "$inc"`,
	`operator "$max"`, `operator "$min"`, `operator "$mul"`, `operator "$pop"`, `operator "$pull"`,
	`operator "$pullAll"`, `operator "$rename"`, `clause "$position"`, `clause "$sort"`,
	"positional paths",
}

// TestRecordings runs the statements of the recorded transcripts on the documents
// that the server ran them on, and compares with what the server stored. The
// documents come from the log, the statements do not.
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
	total := tally{refused: map[string]int{}}
	for _, part := range tallies {
		if part == nil {
			t.Skip("only some scenarios were run")
		}
		total.add(part)
	}
	t.Log(&total)
	// A little less than there is, lest this test judges nothing one day.
	if total.modifiers < 480 || total.pipelines < 160 || total.replacements < 220 || total.images < 70 {
		t.Errorf("too little was judged: %s", &total)
	}
}

// tally counts what was judged.
type tally struct {
	modifiers, pipelines, replacements int
	// images is how many replies showed the document before or after.
	images int
	// refused counts what is not modelled.
	refused map[string]int
}

func (c *tally) add(d *tally) {
	c.modifiers += d.modifiers
	c.pipelines += d.pipelines
	c.replacements += d.replacements
	c.images += d.images
	for reason, n := range d.refused {
		c.refused[reason] += n
	}
}

func (c *tally) count(u bson.RawValue) {
	switch {
	case u.Type == bson.TypeArray:
		c.pipelines++
	case strings.HasPrefix(firstKey(u.Value), "$"):
		c.modifiers++
	default:
		c.replacements++
	}
}

func (c *tally) String() string {
	var refused []string
	n := 0
	for _, reason := range slices.Sorted(maps.Keys(c.refused)) {
		n += c.refused[reason]
		refused = append(refused, fmt.Sprintf("%s %d", reason, c.refused[reason]))
	}
	return fmt.Sprintf("%d updates judged: %d modifiers, %d pipelines, %d replacements; %d images in replies; %d not modelled: %s",
		c.modifiers+c.pipelines+c.replacements, c.modifiers, c.pipelines, c.replacements, c.images, n, strings.Join(refused, ", "))
}

// judge pairs the statements of a scenario's transcript with the entries that
// they caused. Each such entry has to have its statement, and each modified
// document of a reply its entry.
func judge(t *testing.T, s *corpus.Scenario) *tally {
	changes := replay(t, s)
	c := &tally{refused: map[string]int{}}
	for cmd, err := range s.Commands() {
		if errors.Is(err, fs.ErrNotExist) {
			t.Log("it has no transcript")
			return c
		}
		if err != nil {
			t.Fatal(err)
		}
		statements := statementsOf(t, &cmd)
		found := 0
		for _, st := range statements {
			ch, ok := changes[st.id]
			if !ok {
				continue // an upsert that inserted, or nothing to change
			}
			found++
			delete(changes, st.id)
			c.judgeStatement(t, st.u, ch)
			c.judgeImage(t, &cmd, ch)
		}
		modified, isUpdate := cmd.Reply.Lookup("nModified").AsInt64OK()
		if isUpdate && len(statements) > 0 && int(modified) != found {
			t.Errorf("command at byte %d: the reply says %d modified, the log has %d", cmd.Offset, modified, found)
		}
	}
	for _, ch := range changes {
		t.Errorf("entry %s: its statement is not in the transcript", ch.at)
	}
	return c
}

func (c *tally) judgeStatement(t *testing.T, u bson.RawValue, ch change) {
	t.Helper()
	got, err := serverupdate.Apply(ch.pre, u)
	if refusal, ok := errors.AsType[*serverupdate.Error](err); ok {
		for _, reason := range notModelled {
			if strings.Contains(refusal.Message, reason) {
				c.refused[reason]++
				return
			}
		}
	}
	if err != nil {
		t.Errorf("entry %s: %s on %s: %v", ch.at, u, ch.pre, err)
		return
	}
	c.count(u)
	if !bytes.Equal(got, ch.post) {
		t.Errorf("entry %s: %s on %s:\n got %s, %x\nwant %s, %x", ch.at, u, ch.pre, got, []byte(got), ch.post, []byte(ch.post))
	}
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

// statementID names one statement of a session's retryable write: in the command
// that sends it as in the entry that it causes.
type statementID struct {
	session           string
	txnNumber, number int64
}

type statement struct {
	id statementID
	u  bson.RawValue
}

// statementsOf returns a command's update statements, if they are retryable:
// others have no statement number in the log. Those of transactions are left
// out.
func statementsOf(t *testing.T, cmd *corpus.Command) []statement {
	t.Helper()
	c := cmd.Command
	txnNumber, retryable := c.Lookup("txnNumber").AsInt64OK()
	if _, err := c.LookupErr("autocommit"); !retryable || err == nil {
		return nil
	}
	for _, name := range []string{"stmtId", "stmtIds"} {
		if _, err := c.LookupErr(name); err == nil {
			t.Fatalf("command at byte %d: %s is not understood here", cmd.Offset, name)
		}
	}
	id := statementID{session: string(c.Lookup("lsid", "id").Value), txnNumber: txnNumber}
	switch firstKey(c) {
	case "findAndModify":
		if u, err := c.LookupErr("update"); err == nil {
			return []statement{{id, u}}
		}
		return nil // it removes
	case "update":
		list, err := c.Lookup("updates").Array().Values()
		if err != nil {
			t.Fatalf("command at byte %d: %v", cmd.Offset, err)
		}
		var statements []statement
		for i, st := range list {
			id.number = int64(i)
			statements = append(statements, statement{id, st.Document().Lookup("u")})
		}
		return statements
	default:
		return nil
	}
}

func firstKey(doc []byte) string {
	first, err := bson.Raw(doc).IndexErr(0)
	if err != nil {
		return ""
	}
	return first.Key()
}

// change is what an update entry did to its document.
type change struct {
	at        oplog.OpTime
	pre, post bson.Raw
}

// replay returns what the updates of a log did that are of a statement, but for
// those in transactions.
func replay(t *testing.T, s *corpus.Scenario) map[statementID]change {
	t.Helper()
	chains, err := txn.New(txn.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := chains.Close(); err != nil {
			t.Error(err)
		}
	}()
	all := documents{}
	changes := map[statementID]change{}
	for e, err := range s.Oplog() {
		if err != nil {
			t.Fatal(err)
		}
		result, err := chains.Add(e)
		if err != nil {
			t.Fatal(err)
		}
		switch result.Outcome {
		case txn.Pass:
			ch := all.apply(t, &e.Op)
			number, ok := e.StmtID.AsInt64OK()
			// Updates of time-series buckets are what inserts cause.
			if e.Kind != oplog.KindUpdate || !ok || strings.Contains(string(e.NS), ".system.buckets.") {
				continue
			}
			id := statementID{string(e.LSID.Lookup("id").Value), e.TxnNumber, number}
			if other, ok := changes[id]; ok {
				t.Fatalf("entries %s and %s are of one statement", other.at, e.OpTime)
			}
			changes[id] = ch
		case txn.Committed:
			for op, err := range result.Txn.Ops() {
				if err != nil {
					t.Fatal(err)
				}
				all.apply(t, &op)
			}
			if err := result.Txn.Close(); err != nil {
				t.Fatal(err)
			}
		case txn.Held, txn.Aborted:
		default:
			t.Fatalf("entry %s: %s", e.OpTime, result.Outcome)
		}
	}
	return changes
}

type documentKey struct {
	collection oplog.UUID
	idType     bson.Type
	id         string
}

func keyOf(collection oplog.UUID, id bson.RawValue) documentKey {
	return documentKey{collection, id.Type, string(id.Value)}
}

// documents are those that a log leads to, starting from none. Those of a dropped
// collection stay: no other collection gets its UUID.
type documents map[documentKey]bson.Raw

func (d documents) apply(t *testing.T, op *oplog.Op) change {
	t.Helper()
	ch := change{at: op.OpTime}
	if op.Kind == oplog.KindCommand || op.Kind == oplog.KindNoop {
		return ch
	}
	if op.UI.IsZero() {
		t.Fatalf("entry %s: no collection UUID", op.OpTime)
	}
	key := keyOf(op.UI, op.ID)
	switch op.Kind {
	case oplog.KindInsert:
		ch.post = op.O
	case oplog.KindUpdate:
		ch.pre = d[key]
		if ch.pre == nil {
			t.Fatalf("entry %s: the log does not say what %s was before", op.OpTime, op.ID)
		}
		var err error
		if ch.post, err = update.Apply(ch.pre, op.O); err != nil {
			t.Fatalf("entry %s: %v", op.OpTime, err)
		}
	default:
	}
	// The _id may have become a number of another type.
	delete(d, key)
	if ch.post != nil {
		d[keyOf(op.UI, ch.post.Lookup("_id"))] = ch.post
	}
	return ch
}
