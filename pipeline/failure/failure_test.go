package failure

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/errtest"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/syncsource"
)

// rewrite says that docs/errors.md is to be rewritten.
var rewrite = flag.Bool("rewrite", false, "rewrite docs/errors.md")

// samples has an error for each rule, wrapped as in production.
var samples = map[string]error{
	"stopped":                                                      ErrStopped,
	"another process took over":                                    lease.ErrFenced,
	"another process has the lease":                                &lease.HeldError{},
	"lease not renewed in time":                                    lease.ErrExpired,
	"target lost acknowledged writes":                              lease.ErrRewound,
	"reply of a former primary of the target":                      lease.ErrBehind,
	"target has a write whose outcome was unknown":                 checkpoint.ErrAhead,
	"oplog ends before the last announced write":                   applier.ErrLogIncomplete,
	"write that acquires the lease not sent in time":               mongo.ErrTooLate,
	"number of writers changed, or a copy began":                   lease.ErrSpent,
	"source is another replica set":                                checkpoint.ErrOtherSource,
	"link was cut over, with a way back":                           &checkpoint.OverError{Link: "dr", Over: checkpoint.Over{Reverse: &checkpoint.Reverse{}}},
	"link was cut over":                                            &checkpoint.OverError{Link: "dr"},
	"link created concurrently":                                    checkpoint.ErrExists,
	"link was removed":                                             checkpoint.ErrRemoved,
	"settings differ from the link's":                              checkpoint.ErrSettings,
	"metadata of another release":                                  &checkpoint.VersionError{},
	"document routing of another release":                          &checkpoint.RoutingError{},
	"metadata damaged":                                             &metadata.DamagedError{},
	"newest oplog entry is older than at the last start":           &replset.WentBackError{},
	"start point is older than the oplog":                          replset.ErrTooOld,
	"ten void copies":                                              initialsync.ErrCopies,
	"void copy":                                                    &initialsync.NoMemberError{Err: errors.New("x")},
	"no member can continue the copy at present":                   initialsync.ErrNoMember,
	"member that is copied restarted, rolled back or was resynced": &origin.ChangedError{},
	"feature compatibility version is changing, or unknown":        &origin.FCVError{},
	"member cannot be copied at present":                           origin.ErrState,
	"start of a copy not majority-committed":                       origin.ErrUncommitted,
	"link was promoted":                                            &checkpoint.OverError{Over: checkpoint.Over{Promoted: &checkpoint.Promoted{}}},
	"target is not consistent, or leaves collections out":          initialsync.ErrNotCopied,
	"cutover converts the deferred options":                        &checkpoint.ConvertingError{},
	"no spool":                                                     initialsync.ErrNoSpool,
	"spool in use":                                                 spool.ErrInUse,
	"spool without room at the start":                              &spool.FullError{},
	"spool cannot be read at present":                              &spool.ReadError{},
	"spool damaged":                                                &spool.DamagedError{},
	"no member to read from":                                       syncsource.ErrNoSource,
	"index that cannot be built":                                   &ddl.IndexError{},
	"no member's oplog reaches back to the link's position":        &syncsource.TooStaleError{},
	"oplog history diverged from the link's":                       fmt.Errorf("%w: %w", fetcher.ErrOtherHistory, &fetcher.StartMissingError{}),
	"checkpoint's entry is not in the oplog":                       &txn.ResumeError{},
	"transaction without its first entry":                          &txn.BrokenChainError{},
	"collection must be copied":                                    &ddl.ResyncError{},
	"target diverged, found by a DDL command":                      &ddl.DivergedError{},
	"target diverged":                                              &applier.DivergenceError{},
	"foreign write to the target, with --guard=stop":               &guard.ForeignError{},
	"unique index of the target refuses a copied document":         &clone.UniqueError{Err: servererr.New(11000, "E11000")},
	"document that the target refuses":                             &clone.RefusedError{Err: servererr.New(servererr.BadValue, "no")},
	"unique index of the target refuses a write":                   &applier.UniqueError{Err: servererr.New(11000, "E11000")},
	"unique index cannot be created":                               &ddl.UniqueError{Err: servererr.New(11000, "E11000")},
	"options of a collection that the target does not accept":      &ddl.OptionError{Err: servererr.New(servererr.BadValue, "no")},
	"I/O error in the spill directory":                             &txn.SpillError{Err: errors.New("no space left on device")},
	"member with an empty oplog":                                   replset.ErrEmptyOplog,
	"member without a configuration of its set":                    replset.ErrNoConfig,
	"member with an unreadable optime":                             replset.ErrOpTime,
	"entry not supported":                                          &oplog.EntryError{Err: oplog.ErrUnknownOp},
	"login refused":                                                &mongo.LostError{Err: &driver.AuthError{Err: errors.New("wrong password")}},
	"privilege missing":                                            servererr.New(servererr.Unauthorized, "not authorized"),
	"no reply from a server":                                       &mongo.LostError{Host: "db1:27017", Err: errors.New("connection reset")},
	"outcome of a write unknown":                                   &mongo.UnconfirmedError{Err: servererr.New(servererr.WriteConcernTimeout, "waiting")},
	"operation or document too large for the target's storage cache, for 10 min": &TooLargeError{Err: &applier.OpError{Err: servererr.New(servererr.TransactionTooLargeForCache, "no")}},
	"name that the target does not accept":                                       &ddl.NameError{Err: servererr.New(servererr.InvalidNamespace, "no")},
	"conflict that lasts for 30 s":                                               &applier.StuckError{Err: servererr.New(servererr.WriteConflict, "conflict")},
	"temporary error of a server":                                                servererr.New(servererr.NotWritablePrimary, "not primary"),
	"time limit exceeded":                                                        context.DeadlineExceeded,
}

func TestClassify(t *testing.T) {
	for _, r := range rules {
		err, ok := samples[r.name]
		if !ok {
			t.Errorf("%s: no sample", r.name)
			continue
		}
		got := Classify(fmt.Errorf("stage: do this to that: %w", err))
		if got != r.class {
			t.Errorf("%s: %+v, want %+v: another rule came first", r.name, got, r.class)
		}
		switch v := r.class; v.Action {
		case Resync, Exit:
			if v.Code == 0 || v.Hint == "" {
				t.Errorf("%s: ends the run without a code or a hint", r.name)
			}
		case Retry:
			if v.Code != 0 {
				t.Errorf("%s: has an exit code but does not end the run", r.name)
			}
		default:
			t.Errorf("%s: no action", r.name)
		}
	}
	if len(samples) != len(rules) {
		t.Errorf("%d samples for %d rules", len(samples), len(rules))
	}
	if got := Classify(errors.New("unknown")); got.Action != Exit || got.Code != ExitUnexpected {
		t.Errorf("an unknown error: %+v, want the end", got)
	}
}

// errorsPage is docs/errors.md up to its table of rules.
const errorsPage = `# Errors

## Ended links

Read the exit code, then the last line of the log: it says what failed, on what, and what to do.

| code | what happened | what to do |
|---|---|---|
| 5 | Only with ` + "`--once`" + `: another process has the link. | Nothing, if that process is meant to run it. Without ` + "`--once`" + ` this one stands by; with ` + "`--takeover`" + ` it takes the link over. |
| 6 | The link cannot continue from its checkpoint, ten copies in one run became void, or the link was cut over. | Do what the message says. Usually: give the source a larger oplog, then copy again under a new ` + "`--link`" + ` with ` + "`--drop-existing`" + `. |
| 7 | The target differs from what the link wrote to it, or, with ` + "`--guard=stop`" + `, something else writes to it. | Find out what else writes to the target ([foreign writes](foreign-writes.md)). The message names the collection and, where there is one, the ` + "`_id`" + ` and the entry. |
| 8 | A server cannot be reached, or refuses the login or a privilege. | Fix that, then start the link again. See [privileges.md](privileges.md). |
| 9 | A startup check failed, or the link cannot run with these settings or this spool. | Do what the ` + "`FAIL`" + ` lines, or the message, say. |
| 10 | The link was stopped before it had applied everything it had read. | Start it again: it resumes from its checkpoint. |
| 11 | The source has an entry or a document that cannot be applied. | Look for a newer release, or do what the message says. |
| 1 | Any other error, such as a full disk under ` + "`--spill-dir`" + `. | Do what the message says and start it again; if it makes no sense, report it. |

All codes are in [exit-codes.md](exit-codes.md). The target records exactly what each writer has applied, and except
after code 6 the next start resumes there.

## Links that keep retrying

Temporary errors (elections, lost connections, timeouts, conflicts) do not end a link. It logs them and starts a
new attempt. ` + "`reason` and `lastError` in `GET /status`" + ` say what it waits for; ` + "`/healthz`" + ` is 503 after a minute
or two without progress. Restarting the process does not help; repairing what the reason names does.

## Rules

One function, ` + "`failure.Classify`" + `, maps every error of a running link to an action. It tries these rules in order, and the
first that matches decides. (` + "`go test ./pipeline/failure -run TestErrorTable -rewrite`" + ` generates this page from them.)

- **retry**: a new attempt starts, after a pause of at most 30 s. It raises the link's term, reads the lanes, and reads
  the oplog again from the checkpoint, so nothing is lost and nothing is applied twice.
- **exit**: the run ends with the exit code given. Only what the checkpoint covers counts as applied.

Errors of reading a member of the source do not end an attempt: the link chooses another member (or, if there is none,
the same one again after a second). It does not choose the failed member again for some time:

| what is wrong with the member | not chosen again for |
|---|---|
| it does not answer, or refuses a command or the login | 10 s |
| it is shutting down | as long as it says |
| its oplog is empty, or its replies or optimes are malformed | 10 s |
| its oplog begins after the entry from which the link resumes, or lacks that entry; it belongs to another set; an entry is corrupt | 1 min |
| it does not have that entry yet; it was rolled back; its entries are out of order | 1 s |

If no member has that entry, the run ends. If the copy is not consistent
by then, it begins anew instead.

A refusal that says nothing of the command (InternalError, UnknownError, OperationFailed, or a code that this release
does not know) ends a run with the eighth in a row, each less than ten minutes after the one before: until then a new
attempt starts, which examines what effect the command had. An operation of the oplog that is refused alone ends it at once.

A refused login ends a run only before its first attempt. Later the link tries another member, or starts a new attempt: a
server that cannot read its users (during a rollback, an initial sync or a shutdown) refuses valid logins as well.

| what | action | code | what to do |
|---|---|---|---|
`

// The table of errors is generated from the rules.
func TestErrorTable(t *testing.T) {
	var b strings.Builder
	b.WriteString(errorsPage)
	for _, r := range rules {
		code, action := "", r.class.Action
		if r.class.Code != 0 {
			code, action = strconv.Itoa(r.class.Code), Exit
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.name, action, code, r.class.Hint)
	}
	last := Classify(errors.New("anything else"))
	fmt.Fprintf(&b, "| anything else | %s | %d | %s |\n", last.Action, last.Code, last.Hint)
	writeKinds(&b)
	const path = "../../docs/errors.md"
	if *rewrite {
		must.Succeed(t, os.WriteFile(path, []byte(b.String()), 0o644))
	}
	got := must.Get(os.ReadFile(path))(t)
	if string(got) != b.String() {
		t.Errorf("%s is not what the rules say: run this test with -rewrite", path)
	}
}

// writeKinds writes the meaning of each kind of refusal.
func writeKinds(b *strings.Builder) {
	b.WriteString(`
## Server error codes

Each error code of a server has one kind (` + "`internal/mongo/servererr/kind.go`" + `); a code that is not listed is judged by its
error labels. The kind alone decides what is done, so a code means the same wherever it occurs. The table says what is done when the target
answers with such a code: *again* repeats the command, *new attempt* is **retry** above.

| kind | transaction of a writer | DDL command | metadata of the link | the run | codes |
|---|---|---|---|---|---|
`)
	for _, k := range errtest.Kinds() {
		var codes []string
		for _, c := range servererr.Codes() {
			if c.Kind() == k {
				codes = append(codes, c.String())
			}
		}
		list := strings.Join(codes, ", ")
		if said, ok := kindsWithout[k]; ok {
			list = said
		}
		row, run := kindRows[k], Classify(kindSample(k)).Action.String()
		if k == servererr.Auth {
			run += " (a login that is refused after the first attempt: retry)"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", k, row.flush, row.command, row.own, run, list)
	}
}

// kindsWithout are the kinds without a list of codes.
var kindsWithout = map[servererr.Kind]string{
	servererr.Isolate: "all others", servererr.Lost: "network errors", servererr.Stuck: "any *again* that lasts for 30 s",
}

// kindSample returns an error of a kind.
func kindSample(k servererr.Kind) error {
	for _, c := range servererr.Codes() {
		if c.Kind() == k {
			return servererr.New(c, "no")
		}
	}
	if k == servererr.Lost {
		return &mongo.LostError{Err: errors.New("reset")}
	}
	return &mongo.StuckError{Err: servererr.New(servererr.LockTimeout, "no")}
}

// kindRows are the reactions of each layer to a kind; tests of the layers check them.
var kindRows = map[servererr.Kind]struct{ flush, command, own string }{
	servererr.Isolate:     {"each operation alone; the run ends if one is refused", "the run ends", "the run ends"}, // see Unexplained
	servererr.Transient:   {"again; with fewer operations if it lasts", "again", "again"},
	servererr.Split:       {"in halves; a single operation again, for 10 min if it is too large for the cache", "again, but an index build is left out", "again"},
	servererr.Expired:     {"again; with fewer operations if it lasts", "new attempt", "again"},
	servererr.Ended:       {"new attempt", "new attempt", "again"},
	servererr.NotPrimary:  {"new attempt", "new attempt", "new attempt"},
	servererr.Leaving:     {"new attempt", "new attempt", "new attempt"},
	servererr.Session:     {"new attempt", "new attempt", "new attempt"},
	servererr.Unconfirmed: {"new attempt", "new attempt", "new attempt"},
	servererr.Cursor:      {"new attempt", "new attempt", "new attempt"},
	servererr.Full:        {"new attempt", "new attempt", "new attempt"},
	servererr.Auth:        {"the run ends", "the run ends", "the run ends"},
	servererr.Unsupported: {"the run ends", "the run ends", "the run ends"},
	servererr.Lost:        {"new attempt", "new attempt", "new attempt"},
	servererr.Stuck:       {"new attempt", "again", "new attempt"},
}

// TestPassing: no transient refusal ends a run, in whatever command or operation it
// occurs; any other one does so only by a rule, or if the operation is at fault.
func TestPassing(t *testing.T) {
	for err, k := range errtest.Errors() {
		for _, err := range []error{err, fmt.Errorf("ddl: %w", err), &applier.OpError{Err: err}} {
			v := Classify(err)
			if (v.Action == Retry) != k.Passes() {
				t.Errorf("%T %v (%s): %s, %d", err, err, k, v.Action, v.Code)
			}
			if v.Code == ExitUnexpected && k != servererr.Isolate && k != servererr.Unsupported {
				t.Errorf("%T %v (%s): ends the run, and no rule says why", err, err, k)
			}
		}
	}
	for _, code := range []servererr.Code{
		servererr.SocketException, servererr.ClientDisconnect, servererr.TransactionCommitted, servererr.UserNotFound,
		servererr.UnknownReplWriteConcern, servererr.NoSuchTransaction, servererr.CallbackCanceled, servererr.IncompleteTransactionHistory,
	} {
		if v := Classify(servererr.New(code, "no")); v.Action != Retry {
			t.Errorf("%s: %s, %d", code, v.Action, v.Code)
		}
	}
	if v := Classify(&mongo.CommitError{Err: servererr.New(servererr.OperationFailed, "no")}); v.Action != Retry {
		t.Errorf("a commit of which nothing is known: %s, %d", v.Action, v.Code)
	}
}

// TestUnexplained: some more attempts follow a refusal whose reason is not known, and none that names its reason.
func TestUnexplained(t *testing.T) {
	t.Parallel()
	fault := servererr.New(servererr.UnknownError, "no")
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{fault, true},
		{servererr.New(servererr.InternalError, "no"), true},
		{servererr.New(servererr.OperationFailed, "no"), true},
		{servererr.New(4_567_890, "no"), true},
		{servererr.New(servererr.BadValue, "no"), false},
		{servererr.New(servererr.CommandNotFound, "no"), false},
		{servererr.New(servererr.Unauthorized, "no"), false},
		{&applier.OpError{Err: fault}, false},
		{&ddl.IndexError{Err: fault}, false},
		{&clone.RefusedError{Err: fault}, false},
		{errors.New("something else"), false},
		{nil, false},
	} {
		if got := Unexplained(fmt.Errorf("in an attempt: %w", tt.err)); got != tt.want {
			t.Errorf("%T %v: %t", tt.err, tt.err, got)
		}
	}
}

// TestRetries: an error that ends a link, so that it is restarted, does not permanently
// end the copy of one collection.
func TestRetries(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err         error
		link, aPart bool
	}{
		{&mongo.LostError{Host: "a:1", Err: errors.New("no answer")}, true, true},
		{&driver.AuthError{}, false, true},
		{&spool.FullError{}, false, true},
		{&txn.SpillError{}, false, true},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}, false, true},
		{checkpoint.ErrSettings, false, false},
		{errors.New("something else"), false, false},
	} {
		err := fmt.Errorf("in an attempt: %w", tt.err)
		if got := Retries(err, false, false); got != tt.link {
			t.Errorf("%T: a link retries: %t", tt.err, got)
		}
		if got := Retries(err, true, true); got != tt.aPart {
			t.Errorf("%T: a part retries: %t", tt.err, got)
		}
	}
	if !Retries(&driver.AuthError{}, true, false) {
		t.Error("a link that was let in before does not retry")
	}
}
