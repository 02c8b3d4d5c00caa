package driver_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/driver/drivertest"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

func names(t *testing.T, doc bson.Raw) string {
	t.Helper()
	elems, err := doc.Elements()
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]string, len(elems))
	for i, e := range elems {
		keys[i] = e.Key()
	}
	return strings.Join(keys, " ")
}

var inSet = bson.D{
	{Key: "setName", Value: "rs0"},
	{Key: "secondary", Value: true},
	{Key: "isWritablePrimary", Value: false},
	{Key: "ismaster", Value: false},
}

// TestWhatIsAdded: only the documented fields are added to a command.
func TestWhatIsAdded(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		member bool // of a set, by a direct connection
		config driver.Config
		cmd    bson.D
		want   string
	}{
		{"plain", false, driver.Config{}, bson.D{{Key: "insert", Value: "c"}}, "insert $db"},
		{"with a session", false, driver.Config{}, bson.D{{Key: "insert", Value: "c"}, {Key: "lsid", Value: 1}, {Key: "txnNumber", Value: 2}}, "insert lsid txnNumber $db"},
		{"direct", true, driver.Config{}, bson.D{{Key: "find", Value: "c"}}, "find $db readConcern $readPreference"},
		{"a read", false, driver.Config{}, bson.D{{Key: "aggregate", Value: "c"}}, "aggregate $db readConcern"},
		{"a read with a concern", false, driver.Config{}, bson.D{{Key: "find", Value: "c"}, {Key: "readConcern", Value: bson.D{}}}, "find readConcern $db"},
		{"a read in a transaction", false, driver.Config{}, bson.D{{Key: "find", Value: "c"}, {Key: "autocommit", Value: false}}, "find autocommit $db"},
		{"direct with a preference", true, driver.Config{}, bson.D{{Key: "find", Value: "c"}, {Key: "$readPreference", Value: bson.D{}}}, "find $readPreference $db readConcern"},
		{"direct in a transaction", true, driver.Config{}, bson.D{{Key: "find", Value: "c"}, {Key: "autocommit", Value: false}}, "find autocommit $db"},
		{"retries and concerns of the URI", false, driver.Config{URI: "?retryWrites=true&w=majority&readConcernLevel=majority&timeoutMS=1000&journal=true"}, bson.D{{Key: "insert", Value: "c"}}, "insert $db"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			test.config.URI = f.uri() + test.config.URI
			if test.member {
				f.hello = inSet
			}
			f.start()
			var c mongo.Caller
			s := open(t, test.config)
			c = s
			if test.member {
				c = s.Member(f.host())
			}
			body := drivertest.Doc(t, test.cmd)
			docs := []bson.Raw{drivertest.Doc(t, bson.D{{Key: "_id", Value: 1}}), drivertest.Doc(t, bson.D{})}
			if _, err := c.Call(within(t), mongo.Command{DB: "app", Body: body, Sequence: "documents", Docs: docs}); err != nil {
				t.Fatal(err)
			}
			got := f.last()
			if have := names(t, got.body); have != test.want {
				t.Errorf("it arrived as %q, want %q", have, test.want)
			}
			if !bytes.HasPrefix(got.body[4:], body[4:len(body)-1]) {
				t.Errorf("the body %s arrived as %s", body, got.body)
			}
			if db := got.body.Lookup("$db").StringValue(); db != "app" {
				t.Errorf("the database is %q", db)
			}
			if len(got.sections["documents"]) != 2 || !bytes.Equal(got.sections["documents"][0], docs[0]) {
				t.Errorf("the sequence is %v", got.sections)
			}
		})
	}
}

// TestDefaultTime: reads are not subject to the time that a set of 8.0 and later allows them by default. Older servers get
// what they always got.
func TestDefaultTime(t *testing.T) {
	t.Parallel()
	limited := bson.E{Key: "maxTimeMS", Value: int64(1000)}
	tests := []struct {
		name    string
		version int32
		cmd     bson.D
		want    int64
	}{
		{"7.0", 21, bson.D{{Key: "find", Value: "c"}}, 0},
		{"8.0", 25, bson.D{{Key: "find", Value: "c"}}, math.MaxInt32},
		{"an aggregate", 25, bson.D{{Key: "aggregate", Value: "c"}}, math.MaxInt32},
		{"a count", 25, bson.D{{Key: "count", Value: "c"}}, math.MaxInt32},
		{"later", 26, bson.D{{Key: "distinct", Value: "c"}}, math.MaxInt32},
		{"in a transaction", 25, bson.D{{Key: "find", Value: "c"}, {Key: "autocommit", Value: false}}, math.MaxInt32},
		{"with a limit", 25, bson.D{{Key: "find", Value: "c"}, limited}, 1000},
		{"a getMore, which has its cursor's", 25, bson.D{{Key: "getMore", Value: int64(1)}}, 0},
		{"a write", 25, bson.D{{Key: "insert", Value: "c"}}, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			f.hello = bson.D{{Key: "maxWireVersion", Value: test.version}}
			f.start()
			body := drivertest.Doc(t, test.cmd)
			if _, err := open(t, driver.Config{URI: f.uri()}).Call(within(t), mongo.Command{DB: "app", Body: body}); err != nil {
				t.Fatal(err)
			}
			v, err := f.last().body.LookupErr("maxTimeMS")
			if test.want == 0 {
				if err == nil {
					t.Errorf("it arrived with a limit of %v", v)
				}
				return
			}
			if got, ok := v.AsInt64OK(); !ok || got != test.want {
				t.Errorf("it arrived with a limit of %v, want %d", v, test.want)
			}
		})
	}
}

// TestClusterTime: commands have the newest cluster time, which never goes back.
func TestClusterTime(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var next atomic.Uint32
	f.answer = func(received) (bson.Raw, []byte) {
		return drivertest.Doc(t, bson.D{{Key: "ok", Value: 1}, {Key: "$clusterTime", Value: bson.D{
			{Key: "clusterTime", Value: bson.Timestamp{T: next.Load()}}, {Key: "signature", Value: bson.D{{Key: "keyId", Value: int64(next.Load())}}},
		}}}), nil
	}
	f.start()
	s := open(t, driver.Config{URI: f.uri()})
	for i, step := range []struct{ told, want uint32 }{{100, 0}, {100, 100}, {50, 100}, {200, 100}, {0, 200}} {
		next.Store(step.told)
		must(t, s, "ping", 1)
		v, err := f.last().body.LookupErr("$clusterTime", "clusterTime")
		if step.want == 0 {
			if err == nil {
				t.Errorf("step %d: told %v", i, v)
			}
			continue
		}
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if told, _ := v.Timestamp(); told != step.want {
			t.Errorf("step %d: told %d, want %d", i, told, step.want)
		}
		if key := f.last().body.Lookup("$clusterTime", "signature", "keyId").AsInt64(); key != int64(step.want) {
			t.Errorf("step %d: signature of %d", i, key)
		}
	}
}

func TestCompression(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]wiremessage.CompressorID{
		"snappy": wiremessage.CompressorSnappy, "zlib": wiremessage.CompressorZLib, "zstd": wiremessage.CompressorZstd,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.compressor = id
			f.hello = bson.D{{Key: "compression", Value: bson.A{name}}}
			f.answer = func(m received) (bson.Raw, []byte) {
				return drivertest.Doc(t, bson.D{{Key: "echo", Value: m.body}, {Key: "ok", Value: 1.0}}), nil
			}
			f.start()
			s := open(t, driver.Config{URI: f.uri() + "?compressors=zstd,snappy,zlib"})
			text := strings.Repeat("a long text ", 1000)
			reply := must(t, s, "echo", text)
			if got := reply.Lookup("echo", "echo").StringValue(); got != text {
				t.Errorf("the echo is %q", got)
			}
			if m := f.last(); !m.compressed || len(m.wire) > len(text)/2 {
				t.Errorf("%d bytes were sent for %d, compressed: %v", len(m.wire), len(text), m.compressed)
			}
			must(t, s, "createUser", "x", "pwd", text)
			if f.last().compressed {
				t.Error("a password was compressed")
			}
		})
	}
}

// TestNoCompression: nothing is compressed unless that was negotiated.
func TestNoCompression(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.start()
	must(t, open(t, driver.Config{URI: f.uri() + "?compressors=zstd"}), "ping", 1)
	if f.last().compressed {
		t.Error("it was compressed")
	}
}

// TestOneSend: no error makes a command be sent again.
func TestOneSend(t *testing.T) {
	t.Parallel()
	refusal := func(code int32, labels ...string) func(received) (bson.Raw, []byte) {
		return func(received) (bson.Raw, []byte) {
			return mustDoc(bson.D{
				{Key: "ok", Value: 0},
				{Key: "errmsg", Value: "no"},
				{Key: "code", Value: code},
				{Key: "errorLabels", Value: labels},
				{Key: "errInfo", Value: bson.D{{Key: "why", Value: 1}}},
			}), nil
		}
	}
	ok := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "ok", 1))
	frame := func(to int32, payload []byte) []byte {
		return append(wiremessage.AppendHeader(nil, int32(16+len(payload)), 1, to, wiremessage.OpMsg), payload...)
	}
	tests := []struct {
		name   string
		answer func(received) (bson.Raw, []byte)
		code   servererr.Code // 0 means lost
		what   string
	}{
		{"network", func(received) (bson.Raw, []byte) { return nil, nil }, 0, ""},
		{"not primary", refusal(10107, "RetryableWriteError"), 10107, ""},
		{"shutdown", refusal(91), 91, ""},
		{"login expired", refusal(391), 391, ""},
		{"any other", refusal(12345, "A", "B"), 12345, ""},
		{"answer to another", func(m received) (bson.Raw, []byte) { return nil, frame(m.id+1, append([]byte{0, 0, 0, 0, 0}, ok...)) }, 0, "a reply to message"},
		{"two documents", func(m received) (bson.Raw, []byte) {
			return nil, frame(m.id, append(append([]byte{0, 0, 0, 0, 0}, ok...), ok...))
		}, 0, "it is not one document"},
		{"cut off", func(m received) (bson.Raw, []byte) { return nil, frame(m.id, []byte{0, 0}) }, 0, "within its flags"},
		{"malformed", func(m received) (bson.Raw, []byte) {
			return nil, frame(m.id, append([]byte{0, 0, 0, 0, 0}, bytes.Replace(ok, []byte{0x10}, []byte{0x77}, 1)...))
		}, 0, "read the reply"},
		{"more to come", func(m received) (bson.Raw, []byte) { return nil, frame(m.id, append([]byte{2, 0, 0, 0, 0}, ok...)) }, 0, "it has moreToCome"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			f.answer = test.answer
			f.start()
			s := open(t, driver.Config{URI: f.uri()})
			_, err := try(t, s, "insert", "c")
			if test.code != 0 {
				e, ok := errors.AsType[*servererr.Error](err)
				if !ok || e.Code != test.code || e.Message != "no" || e.Info.Lookup("why").AsInt64() != 1 {
					t.Errorf("the error is %v", err)
				}
				if test.code == 12345 && strings.Join(e.Labels, " ") != "A B" {
					t.Errorf("the labels are %q", e.Labels)
				}
			} else if e, ok := errors.AsType[*mongo.LostError](err); !ok || e.Host != f.host() || !strings.Contains(err.Error(), test.what) {
				t.Errorf("the error is %v", err)
			}
			if n := f.sent(); n != 1 {
				t.Errorf("it was sent %d times", n)
			}
			used := f.last().conn
			f.say(nil)
			must(t, s, "ping", 1)
			if test.code == 0 && f.last().conn == used {
				t.Error("the connection was used again")
			}
		})
	}
}

// TestToldAtOnce: an error that means that a server is not primary, or is down, updates
// the server's state before the call returns.
func TestToldAtOnce(t *testing.T) {
	t.Parallel()
	reply := func(pairs ...bson.E) func(received) (bson.Raw, []byte) {
		return func(received) (bson.Raw, []byte) { return mustDoc(bson.D(pairs)), nil }
	}
	for name, test := range map[string]struct {
		answer func(received) (bson.Raw, []byte)
		gone   bool
	}{
		"not primary":   {reply(bson.E{Key: "ok", Value: 0}, bson.E{Key: "code", Value: 10107}), true},
		"shutdown":      {reply(bson.E{Key: "ok", Value: 0}, bson.E{Key: "code", Value: 91}), true},
		"in a concern":  {reply(bson.E{Key: "ok", Value: 1}, bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 11602}}}), true},
		"network":       {func(received) (bson.Raw, []byte) { return nil, nil }, true},
		"duplicate key": {reply(bson.E{Key: "ok", Value: 0}, bson.E{Key: "code", Value: 11000}), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.hello = bson.D{{Key: "setName", Value: "rs0"}, {Key: "hosts", Value: bson.A{f.host()}}, {Key: "me", Value: f.host()}}
			f.start()
			s := open(t, driver.Config{URI: f.uri() + "?heartbeatFrequencyMS=60000"})
			must(t, s, "ping", 1)
			f.say(test.answer)
			_, _ = try(t, s, "insert", "c")
			if host, _ := s.Primary(); (host == "") != test.gone {
				t.Errorf("the primary is %q", host)
			}
			f.say(nil)
			began := time.Now()
			must(t, s, "ping", 1)
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func mustDoc(v any) bson.Raw {
	b, err := bson.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// TestWrongCommands: a command that cannot be sent is an error, and the connection stays
// usable.
func TestWrongCommands(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.start()
	s := open(t, driver.Config{URI: f.uri()})
	ping := mustDoc(bson.D{{Key: "ping", Value: 1}})
	for what, cmd := range map[string]mongo.Command{
		"no database":          {Body: ping},
		"body is empty":        {DB: "app", Body: mustDoc(bson.D{})},
		"its body":             {DB: "app", Body: ping[:len(ping)-1]},
		"has a $db":            {DB: "app", Body: mustDoc(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "x"}})},
		"sequence has no name": {DB: "app", Body: ping, Docs: []bson.Raw{ping}},
		"xs.1 is not":          {DB: "app", Body: ping, Sequence: "xs", Docs: []bson.Raw{ping, ping[1:]}},
		"larger than a messag": {DB: "app", Body: ping, Sequence: "xs", Docs: slicesRepeat(mustDoc(bson.D{{Key: "x", Value: make([]byte, 1<<20)}}), 48)},
	} {
		if _, err := s.Call(within(t), cmd); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: the error is %v", what, err)
		}
	}
	if f.sent() != 0 {
		t.Errorf("%d were sent", f.sent())
	}
	must(t, s, "ping", 1)
}

func slicesRepeat(doc bson.Raw, n int) []bson.Raw {
	out := make([]bson.Raw, n)
	for i := range out {
		out[i] = doc
	}
	return out
}

// TestLateDeadline: after a deadline the connection is not used again, so that no other
// call gets the late reply.
func TestLateDeadline(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	hold := make(chan struct{})
	f.answer = func(m received) (bson.Raw, []byte) {
		if first, _ := m.body.IndexErr(0); first.Key() == "slow" {
			<-hold
		}
		return drivertest.Doc(t, bson.D{{Key: "echo", Value: m.body}, {Key: "ok", Value: 1}}), nil
	}
	f.start()
	s := open(t, driver.Config{URI: f.uri()})
	why := errors.New("too slow")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, why)
	defer cancel()
	if _, err := s.Call(ctx, command(t, "slow", 1)); !errors.Is(err, why) {
		t.Errorf("the error is %v", err)
	}
	close(hold)
	for i := range 20 {
		if got := must(t, s, "quick", i).Lookup("echo", "quick").AsInt64(); got != int64(i) {
			t.Fatalf("the reply to %d is that to %d", i, got)
		}
	}
}
