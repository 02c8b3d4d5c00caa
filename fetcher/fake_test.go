package fetcher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// errOver is why a tail is cancelled by a test.
var errOver = errors.New("the scenario is over")

// fake is a member that answers as its script says: one line per command. When
// there are no more it cancels.
type fake struct {
	t      *testing.T
	start  time.Time
	lines  []string
	cancel func()
	log    []string

	lsid            string
	commit, applied oplog.OpTime
	rbid            int64
	set             byte
}

// host is the name of the fakes.
const host = "db1:27017"

func (f *fake) note(format string, args ...any) {
	at := time.Since(f.start).Truncate(time.Millisecond).String()
	f.log = append(f.log, at+" "+fmt.Sprintf(format, args...))
}

func (f *fake) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	kind := f.describe(cmd)
	if kind == "kill" || kind == "end" {
		if ctx.Err() != nil {
			f.t.Errorf("%s is sent with a context that is done", kind)
		}
		return bson.Raw(marshal(bson.D{{Key: "ok", Value: 1}})), nil
	}
	if len(f.lines) == 0 {
		f.cancel()
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	line := strings.Fields(f.lines[0])
	f.lines = f.lines[1:]
	if line[0] != kind {
		f.t.Errorf("the command is a %s, the script goes on with %q", kind, line)
	}
	return f.answer(ctx, kind, line[1:])
}

// describe notes a command and returns its kind.
func (f *fake) describe(cmd mongo.Command) string {
	get := func(path ...string) string {
		v, err := cmd.Body.LookupErr(path...)
		if err != nil {
			return "-"
		}
		if t, i, ok := v.TimestampOK(); ok {
			return fmt.Sprintf("%d:%d", t, i)
		}
		if n, ok := v.AsInt64OK(); ok {
			return strconv.FormatInt(n, 10)
		}
		if s, ok := v.StringValueOK(); ok {
			return s
		}
		return v.String()
	}
	elems, err := cmd.Body.Elements()
	if err != nil {
		f.t.Errorf("a command is not BSON: %v", err)
	}
	lsid := get("lsid", "id")
	name := elems[0].Key()
	if name == "endSessions" {
		lsid = get("endSessions", "0", "id")
	}
	if f.lsid == "" {
		f.lsid = lsid
	}
	if lsid != f.lsid || lsid == "-" {
		f.t.Errorf("%s in session %s, before %s", name, lsid, f.lsid)
	}
	if name != "endSessions" && (get("$replData") != "1" || get("$oplogQueryData") != "1" || get("$readPreference", "mode") != "secondaryPreferred") {
		f.t.Errorf("a command without metadata or read preference: %s", cmd.Body)
	}
	concern := get("readConcern", "level")
	switch {
	case name == "find" && get("sort", "$natural") == "1":
		f.note("oldest")
		return "oldest"
	case name == "find" && get("limit") == "1":
		f.note("look at %s, %s", get("filter", "ts", "$gte"), concern)
		return "look"
	case name == "find":
		if get("tailable") != "true" || get("awaitData") != "true" || get("batchSize") != "32768" {
			f.t.Errorf("a find that does not follow: %s", cmd.Body)
		}
		f.note("find from %s, %s ms, %s", get("filter", "ts", "$gte"), get("maxTimeMS"), concern)
		return "find"
	case name == "getMore":
		if size, err := strconv.Atoi(get("batchSize")); err != nil || size < 1 || size > 32768 {
			f.t.Errorf("a getMore whose reply may take any memory: %s", cmd.Body)
		}
		f.note("more of %s, %s ms, known %s", get("getMore"), get("maxTimeMS"), get("lastKnownCommittedOpTime", "ts"))
		return "more"
	case name == "killCursors":
		f.note("kill %s", get("cursors", "0"))
		return "kill"
	case name == "endSessions":
		f.note("end session")
		return "end"
	default:
		f.t.Errorf("unexpected command %s", cmd.Body)
		return name
	}
}

// answer makes a reply of the words of a line: entries as N, N/TERM or N!FAULT,
// and options.
func (f *fake) answer(ctx context.Context, kind string, words []string) (bson.Raw, error) {
	var docs bson.A
	cursor := int64(7)
	var broken string
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "lost":
			return nil, &mongo.LostError{Host: host, Err: errors.New("connection reset")}
		case "error":
			code, _ := strconv.Atoi(value)
			return nil, servererr.New(servererr.Code(code), "refused")
		case "silent":
			<-ctx.Done()
			return nil, context.Cause(ctx)
		case "other":
			return nil, errors.New("wrong password")
		case "after":
			d, err := time.ParseDuration(value)
			if err != nil {
				f.t.Fatal(err)
			}
			if err := pause(ctx, d, nil); err != nil {
				return nil, err
			}
		case "id":
			cursor, _ = strconv.ParseInt(value, 10, 64)
		case "commit":
			f.commit = f.opTime(value)
		case "applied":
			f.applied = f.opTime(value)
		case "rbid":
			f.rbid, _ = strconv.ParseInt(value, 10, 64)
		case "set":
			n, _ := strconv.Atoi(value)
			f.set = byte(n)
		case "broken":
			broken = value
		default:
			name, fault, _ := strings.Cut(w, "!")
			at := f.opTime(name)
			docs = append(docs, entry(at, fault))
			if at.After(f.applied) {
				f.applied = at
			}
		}
	}
	return f.reply(kind, docs, cursor, broken), nil
}

// reply returns a reply with entries. broken names the part that it lacks.
func (f *fake) reply(kind string, docs bson.A, cursor int64, broken string) bson.Raw {
	batch := nextBatch
	if kind != "more" {
		batch = firstBatch
	}
	reply := bson.D{{Key: "cursor", Value: bson.D{
		{Key: batch, Value: append(bson.A{}, docs...)}, {Key: "id", Value: cursor}, {Key: "ns", Value: "local.oplog.rs"},
	}}}
	if broken == "reply" {
		reply = bson.D{}
	}
	reply = append(reply, bson.E{Key: "ok", Value: 1.0})
	if broken != "repl" {
		reply = append(reply, bson.E{Key: replData, Value: f.replData(broken)})
	}
	if broken != "oplog" {
		reply = append(reply, bson.E{Key: oplogData, Value: f.oplogData(broken)})
	}
	return bson.Raw(marshal(reply))
}

func (f *fake) replData(broken string) bson.D {
	d := bson.D{
		{Key: "term", Value: f.applied.Term},
		{Key: "lastOpCommitted", Value: f.commit},
		{Key: "configVersion", Value: int64(1)},
		{Key: "configTerm", Value: int64(1)},
		{Key: "syncSourceIndex", Value: int32(-1)},
		{Key: "isPrimary", Value: true},
	}
	if f.set != 0 {
		d = append(d, bson.E{Key: "replicaSetId", Value: bson.ObjectID{f.set}})
	}
	if broken == "term" {
		d = d[1:]
	}
	return d
}

func (f *fake) oplogData(broken string) bson.D {
	d := bson.D{
		{Key: "lastOpCommitted", Value: f.commit},
		{Key: "lastCommittedWall", Value: bson.DateTime(1000)},
		{Key: "lastOpApplied", Value: f.applied},
		{Key: "rbid", Value: int32(f.rbid)},
		{Key: "primaryIndex", Value: int32(0)},
		{Key: "syncSourceIndex", Value: int32(-1)},
		{Key: "syncSourceHost", Value: ":27017"},
	}
	switch broken {
	case "rbid":
		d = append(d[:3], d[4:]...)
	case "committed":
		d[0].Value = "now"
	}
	return d
}

func (f *fake) opTime(s string) oplog.OpTime {
	f.t.Helper()
	at, err := parseOpTime(s)
	if err != nil {
		f.t.Fatalf("script: %v", err)
	}
	return at
}

// parseOpTime reads N or N/TERM: second 1000, increment N.
func parseOpTime(s string) (oplog.OpTime, error) {
	n, term, found := strings.Cut(s, "/")
	if !found {
		term = "1"
	}
	inc, err := strconv.ParseUint(n, 10, 32)
	if err != nil {
		return oplog.OpTime{}, err
	}
	t, err := strconv.ParseInt(term, 10, 64)
	return oplog.NewOpTime(1000, uint32(inc), t), err
}

// entry is a noop, or something with a fault.
func entry(at oplog.OpTime, fault string) bson.D {
	e := bson.D{
		{Key: "op", Value: "n"},
		{Key: "ns", Value: ""},
		{Key: "o", Value: bson.D{{Key: "msg", Value: "x"}}},
		{Key: "ts", Value: at.TS},
		{Key: "t", Value: at.Term},
		{Key: "v", Value: int64(2)},
		{Key: "wall", Value: bson.DateTime(5000)},
	}
	switch fault {
	case "op":
		e[0].Value = "z"
	case "ts":
		e = append(e[:3], e[4:]...)
	case "tstype":
		e[3].Value = "soon"
	case "null":
		e[3].Value = bson.Timestamp{}
	case "more":
		e = append(e, bson.E{Key: "extra", Value: 1})
	case "large":
		e[2].Value = bson.D{{Key: "msg", Value: strings.Repeat("x", 40_000)}}
	}
	return e
}

func marshal(v any) []byte {
	b, err := bson.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// cursorReply is a reply with entries, as a member sends it, that commits all.
func cursorReply(batch string, entries ...oplog.OpTime) bson.Raw {
	f := &fake{rbid: 1}
	docs := bson.A{}
	for _, at := range entries {
		docs = append(docs, entry(at, ""))
		f.applied, f.commit = at, at
	}
	return marshal(bson.D{
		{Key: "cursor", Value: bson.D{{Key: batch, Value: docs}, {Key: "id", Value: int64(7)}, {Key: "ns", Value: "local.oplog.rs"}}},
		{Key: "ok", Value: 1.0},
		{Key: replData, Value: f.replData("")},
		{Key: oplogData, Value: f.oplogData("")},
	})
}

// inside tells whether a view lies in a buffer.
func inside(buf, view []byte) bool {
	if len(view) == 0 || len(buf) == 0 {
		return false
	}
	low, at := uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&view[0]))
	return at >= low && at+uintptr(len(view)) <= low+uintptr(len(buf))
}
