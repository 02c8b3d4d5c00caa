package mongotest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// envFake makes this test binary behave as a server binary, so that what
// starts one can be tested where there is none. Its value says how it behaves.
const envFake = "MONGOTEST_FAKE"

const (
	fakeGood      = "good"
	fakeDies      = "dies"       // ends at once, with a line on its log
	fakePortTaken = "port taken" // finds its port taken, the first time
	fakeStrange   = "strange"    // does not know --version
	fakeRefuses   = "refuses"    // does not let itself be initiated
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(envFake); mode != "" {
		os.Exit(fakeMain(mode, os.Args[1:]))
	}
	os.Exit(m.Run())
}

func fakeMain(mode string, args []string) int {
	if args[0] == "--version" {
		if mode == fakeStrange {
			say("a program of another kind")
			return 0
		}
		say("db version v5.0.7\nBuild Info: {}")
		return 0
	}
	flags := map[string]string{}
	for i, arg := range args {
		if i+1 < len(args) {
			flags[arg] = args[i+1]
		}
	}
	mark := filepath.Join(os.Getenv("MONGOTEST_FAKE_DIR"), "tried")
	_, err := os.Stat(mark)
	switch {
	case mode == fakeDies:
		say("the fake server gives up")
		return 14
	case mode == fakePortTaken && err != nil:
		say("Failed to set up listener: SocketException: Address already in use")
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			say(err)
		}
		return 48
	}
	f := &fake{mode: mode, host: "127.0.0.1:" + flags["--port"], disk: filepath.Join(flags["--dbpath"], "config.bson")}
	f.config, _ = os.ReadFile(f.disk)
	l, err := net.Listen("tcp", f.host)
	if err != nil {
		say(err)
		return 48
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			say(err)
			return 1
		}
		go f.serve(conn)
	}
}

// say writes a line to the log of the fake server, which is its output.
func say(line ...any) { _, _ = fmt.Fprintln(os.Stdout, line...) }

// fake is the little of a server that a start needs.
type fake struct {
	mode, host string
	disk       string // path of what outlives the process
	mu         sync.Mutex
	config     bson.Raw // guarded by mu; nil until the set is initiated
}

func (f *fake) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for {
		id, op, body, err := readMessage(conn)
		if err != nil {
			return
		}
		switch op {
		case opQuery: // flags, name, skip, limit, document
			name := 4
			for body[name] != 0 {
				name++
			}
			reply := make([]byte, 20, 512)
			binary.LittleEndian.PutUint32(reply[16:], 1)
			err = writeMessage(conn, id, opReply, append(reply, f.answer(bson.Raw(body[name+9:]))...))
		case opMsg: // flags, section 0
			err = writeMessage(conn, id, opMsg, append(make([]byte, 5, 512), f.answer(bson.Raw(body[5:]))...))
		}
		if err != nil {
			return
		}
	}
}

func (f *fake) answer(cmd bson.Raw) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	elems, err := cmd.Elements()
	if err != nil || len(elems) == 0 {
		return marshal(bson.D{{Key: "ok", Value: 0}, {Key: "errmsg", Value: fmt.Sprint(err)}})
	}
	reply := bson.D{}
	add := func(key string, value any) { reply = append(reply, bson.E{Key: key, Value: value}) }
	switch name := elems[0].Key(); name {
	case "hello", "isMaster", "ismaster":
		f.hello(add)
	case "replSetInitiate":
		if f.mode == fakeRefuses {
			return marshal(bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: 93}, {Key: "errmsg", Value: "refused by the fake"}})
		}
		f.adopt(elems[0].Value().Document())
		f.tell()
	case "fakeConfig":
		f.adopt(elems[0].Value().Document())
	case "replSetStepDown":
		// The version decides which member is primary.
		doc := bson.D{}
		if err := bson.Unmarshal(f.config, &doc); err != nil {
			say(err)
		}
		f.adopt(marshal(append(bson.D{{Key: "turn", Value: f.turn() + 1}}, slices.DeleteFunc(doc, func(e bson.E) bool { return e.Key == "turn" })...)))
		f.tell()
	case "replSetGetStatus":
		members := bson.A{}
		for i, host := range f.hosts() {
			state := 2
			if host == f.primary() {
				state = 1
			}
			members = append(members, bson.D{{Key: "_id", Value: i}, {Key: "name", Value: host}, {Key: "state", Value: state}})
		}
		add("members", members)
	case "buildInfo":
		add("versionArray", bson.A{5, 0, 7, 0})
	case "endSessions":
	default:
		say("the fake does not know", name)
	}
	add("ok", 1)
	return marshal(reply)
}

func (f *fake) hello(add func(key string, value any)) {
	add("helloOk", true)
	add("minWireVersion", 0)
	add("maxWireVersion", 13)
	add("maxBsonObjectSize", 16<<20)
	add("maxMessageSizeBytes", 48_000_000)
	add("maxWriteBatchSize", 100_000)
	hosts := f.hosts()
	first := f.primary() == f.host
	add("isWritablePrimary", first)
	add("ismaster", first)
	add("secondary", len(hosts) > 0 && !first)
	if len(hosts) > 0 {
		add("setName", defaultSetName)
		add("setVersion", 1)
		add("hosts", hosts)
		add("primary", f.primary())
		add("me", f.host)
	} else {
		add("isreplicaset", true)
	}
}

// adopt keeps a configuration, also for the next start.
func (f *fake) adopt(config bson.Raw) {
	f.config = slices.Clone(config)
	if err := os.WriteFile(f.disk, config, 0o600); err != nil {
		say(err)
	}
}

// tell sends the configuration to the others.
func (f *fake) tell() {
	for _, host := range f.hosts() {
		if host == f.host {
			continue
		}
		if err := tellConfig(host, f.config); err != nil {
			say(err)
		}
	}
}

func (f *fake) turn() int {
	n, _ := f.config.Lookup("turn").AsInt64OK()
	return int(n)
}

// primary is the next member in turn, as there are no elections.
func (f *fake) primary() string {
	hosts := f.hosts()
	if len(hosts) == 0 {
		return ""
	}
	return hosts[f.turn()%len(hosts)]
}

func (f *fake) hosts() []string {
	var config struct {
		Members []struct {
			Host string `bson:"host"`
		} `bson:"members"`
	}
	if f.config == nil || bson.Unmarshal(f.config, &config) != nil {
		return nil
	}
	hosts := make([]string, len(config.Members))
	for i, m := range config.Members {
		hosts[i] = m.Host
	}
	return hosts
}

// tellConfig is how the fakes of one set hear of it: they have no heartbeats.
func tellConfig(host string, config bson.Raw) error {
	conn, err := net.Dial("tcp", host)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	cmd := marshal(bson.D{{Key: "fakeConfig", Value: config}})
	if err := writeMessage(conn, 0, opMsg, append(make([]byte, 5), cmd...)); err != nil {
		return err
	}
	_, _, _, err = readMessage(conn)
	return err
}

const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013
)

func readMessage(r io.Reader) (id, op uint32, body []byte, err error) {
	var head [16]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, nil, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size < 16+5 || size > 1<<20 {
		return 0, 0, nil, fmt.Errorf("a message of %s bytes", strconv.Itoa(int(size)))
	}
	body = make([]byte, size-16)
	_, err = io.ReadFull(r, body)
	return binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[12:]), body, err
}

func writeMessage(w io.Writer, answers, op uint32, body []byte) error {
	msg := make([]byte, 16, 16+len(body))
	binary.LittleEndian.PutUint32(msg, uint32(16+len(body)))
	binary.LittleEndian.PutUint32(msg[8:], answers)
	binary.LittleEndian.PutUint32(msg[12:], op)
	_, err := w.Write(append(msg, body...))
	return err
}

func marshal(v any) bson.Raw {
	raw, err := bson.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}
