package mongod

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/wire"
)

// fakeEnv says that the process is to be a server, and which.
const fakeEnv = "REPLICATOR_FAKE_MONGOD"

// The servers that it can be.
const (
	fakeServer = "server" // answers
	fakeEnds   = "ends"   // says why it cannot run, and ends
	fakeTaken  = "taken"  // finds its port taken, the first time
	fakeLazy   = "lazy"   // a secondary of it never applies anything
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(fakeEnv); kind != "" {
		os.Exit(fakeMongod(kind))
	}
	goleak.VerifyTestMain(m)
}

// fakeLife is how long a fake server lives at most, unless it is ended.
const fakeLife = time.Minute

// fakeMongod is the process of a server that knows what this package asks for: how
// many documents were inserted is all that it keeps, in a file that the members share.
func fakeMongod(kind string) int {
	port := flag.Int("port", 0, "")
	data := flag.String("dbpath", "", "")
	for _, name := range []string{"replSet", "bind_ip", "oplogSize", "wiredTigerCacheSizeGB"} {
		flag.String(name, "", "")
	}
	flag.Bool("nounixsocket", false, "")
	flag.Parse()
	time.AfterFunc(fakeLife, func() { os.Exit(9) })
	dir := filepath.Dir(*data)
	f := &fake{lazy: kind == fakeLazy, address: net.JoinHostPort("127.0.0.1", strconv.Itoa(*port)), data: *data, dir: dir}
	name, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(*data), "member"), "-")
	f.number, _ = strconv.Atoi(name)
	say("fake mongod starting")
	switch {
	case kind == fakeEnds:
		say("wrong data format, and more of that")
		return 14
	case kind == fakeTaken && strings.HasSuffix(*data, "-1"):
		say("Address already in use")
		return 48
	}
	return f.serve()
}

// fake is one member.
type fake struct {
	address, data, dir string
	// number is which member it is; the first one, 0, is the primary. lazy is true if a
	// secondary stays where it is.
	number int
	lazy   bool

	mu sync.Mutex // guards the files
}

func (f *fake) serve() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("tcp", f.address)
	if err != nil {
		say(err)
		return 48
	}
	var conns sync.WaitGroup
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		conn, err := l.Accept()
		if err != nil {
			conns.Wait()
			return 0
		}
		conns.Go(func() { _ = wire.Serve(ctx, conn, f) })
	}
}

// kept reads a number from a file, 0 where there is none.
func (f *fake) kept(file string) int {
	text, _ := os.ReadFile(file)
	n, _ := strconv.Atoi(string(text))
	return n
}

func (f *fake) keep(file string, n int) {
	// By a rename, as another process reads it.
	if err := os.WriteFile(file+".new", []byte(strconv.Itoa(n)), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		panic(err)
	}
}

// optime is that of the n-th document. The first entry is that of the set.
func optime(n int) bson.D {
	return bson.D{{Key: "ts", Value: bson.Timestamp{T: 1_700_000_000, I: uint32(n) + 1}}, {Key: "t", Value: int64(1)}}
}

// perLook is how many entries a secondary has applied more each time it is asked.
const perLook = 7

// Handle implements wire.Handler.
func (f *fake) Handle(_ context.Context, req *wire.Message) wire.Response {
	f.mu.Lock()
	defer f.mu.Unlock()
	written, joined, applied := filepath.Join(f.dir, "written"), filepath.Join(f.dir, "joined"), filepath.Join(f.data, "applied")
	initiated := filepath.Join(f.dir, "initiated")
	first, set := f.number == 0, f.kept(initiated) > 0
	var reply bson.D
	command, _ := req.Body.IndexErr(0)
	switch command.Key() {
	case "hello", "isMaster", "ismaster", "isWritablePrimary":
		reply = bson.D{
			{Key: "helloOk", Value: true},
			{Key: "isWritablePrimary", Value: set && first},
			{Key: "ismaster", Value: set && first},
			{Key: "secondary", Value: set && !first},
			{Key: "maxBsonObjectSize", Value: 16 << 20},
			{Key: "maxMessageSizeBytes", Value: 48_000_000},
			{Key: "maxWriteBatchSize", Value: 100_000},
			{Key: "minWireVersion", Value: 0},
			{Key: "maxWireVersion", Value: 13},
		}
		if set {
			reply = append(reply, bson.D{
				{Key: "setName", Value: setName},
				{Key: "setVersion", Value: 1},
				{Key: "hosts", Value: bson.A{f.address}},
				{Key: "me", Value: f.address},
			}...)
		}
	case "buildInfo":
		reply = bson.D{{Key: "version", Value: "5.0.fake"}}
	case "replSetInitiate":
		members, _ := req.Body.Lookup("replSetInitiate", "members").Array().Values()
		for i, m := range members {
			if _, err := m.Document().LookupErr("priority"); (err != nil) != (i == 0) {
				return wire.Response{Close: true} // any of them might become the primary
			}
		}
		f.keep(initiated, len(members))
	case "replSetGetConfig":
		reply = bson.D{{Key: "config", Value: bson.D{
			{Key: "_id", Value: setName},
			{Key: "version", Value: int32(1)},
			{Key: "term", Value: int64(1)},
			{Key: "members", Value: bson.A{bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: f.address}}}},
		}}}
	case "replSetReconfig":
		f.keep(joined, 1)
	case "replSetGetStatus":
		n, state := f.kept(written), 1
		if !first {
			at := f.kept(applied)
			if (f.kept(joined) == 1 || f.number < f.kept(initiated)) && !f.lazy {
				state, at = secondaryState, min(n, at+perLook)
				f.keep(applied, at)
			}
			n = at
		}
		reply = bson.D{{Key: "myState", Value: state}, {Key: "optimes", Value: bson.D{{Key: "appliedOpTime", Value: optime(n)}}}}
	case "insert":
		docs, _ := req.Sequence("documents")
		f.keep(written, f.kept(written)+len(docs))
		reply = bson.D{{Key: "n", Value: len(docs)}}
	case "aggregate": // a count of the log, whose bounds are checked
		pipeline := req.Body.Lookup("pipeline", "0", "$match", "ts").String()
		low, high := strings.Contains(pipeline, "$gt"), strings.Contains(pipeline, "$lte")
		if !low || !high {
			return wire.Response{Close: true}
		}
		_, from := req.Body.Lookup("pipeline", "0", "$match", "ts", "$gt").Timestamp()
		_, to := req.Body.Lookup("pipeline", "0", "$match", "ts", "$lte").Timestamp()
		reply = bson.D{{Key: "cursor", Value: bson.D{
			{Key: "id", Value: int64(0)},
			{Key: "ns", Value: "local.oplog.rs"},
			{Key: "firstBatch", Value: bson.A{bson.D{{Key: "n", Value: int64(to - from)}}}},
		}}}
	}
	body, err := bson.Marshal(append(reply, bson.E{Key: "ok", Value: 1.0}))
	if err != nil {
		return wire.Response{Close: true}
	}
	return wire.Response{Body: body}
}

// say writes a line of the fake's log.
func say(line any) { _, _ = fmt.Fprintln(os.Stdout, line) }
