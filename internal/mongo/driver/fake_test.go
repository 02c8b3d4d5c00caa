package driver_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	xdriver "go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/oplogrep/replicator/internal/mongo/driver/drivertest"
)

// fake is a server that records the commands that it receives, and answers as told.
type fake struct {
	t        *testing.T
	listener net.Listener
	// hello is added to its reply to hello.
	hello bson.D
	// answer makes the reply to a command; nil is {ok: 1}.
	answer func(m received) (reply bson.Raw, raw []byte)
	// compressor compresses the replies.
	compressor wiremessage.CompressorID

	mu      sync.Mutex
	got     []received // under mu, without hello and the like
	conns   []net.Conn // under mu
	ends    []error    // of connections, under mu
	stopped bool       // under mu
	group   sync.WaitGroup
}

// opQuery is the opcode of the driver's first hello on a connection.
const opQuery = 2004

// received is a command as it arrived.
type received struct {
	id         int32
	body       bson.Raw
	sections   map[string][]bson.Raw
	compressed bool
	wire       []byte
	conn       net.Conn
}

func newFake(t *testing.T) *fake {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &fake{t: t, listener: listener}
}

func (f *fake) host() string { return f.listener.Addr().String() }

func (f *fake) uri() string { return "mongodb://" + f.host() + "/" }

func (f *fake) start() {
	f.group.Go(func() {
		for {
			conn, err := f.listener.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns = append(f.conns, conn)
			if f.stopped {
				_ = conn.Close()
			}
			f.mu.Unlock()
			f.group.Go(func() { f.serve(conn) })
		}
	})
	f.t.Cleanup(f.stop)
}

func (f *fake) stop() {
	_ = f.listener.Close()
	f.mu.Lock()
	f.stopped = true
	for _, conn := range f.conns {
		_ = conn.Close()
	}
	f.mu.Unlock()
	f.group.Wait()
}

// say changes the replies.
func (f *fake) say(answer func(received) (bson.Raw, []byte)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *fake) last() received {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.got) == 0 {
		f.t.Fatal("nothing was sent")
	}
	return f.got[len(f.got)-1]
}

// allEnded reports whether all connections have ended.
func (f *fake) allEnded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ends) == len(f.conns)
}

func (f *fake) sent() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got)
}

func (f *fake) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // The end of a test.
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			f.mu.Lock()
			f.ends = append(f.ends, err)
			f.mu.Unlock()
			return
		}
		frame := make([]byte, binary.LittleEndian.Uint32(size[:]))
		copy(frame, size[:])
		if _, err := io.ReadFull(conn, frame[4:]); err != nil {
			return
		}
		out := f.handle(conn, frame)
		if out == nil {
			return
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

func (f *fake) handle(conn net.Conn, frame []byte) []byte {
	m := received{conn: conn, wire: frame, sections: map[string][]bson.Raw{}}
	_, id, _, op, rest, _ := wiremessage.ReadHeader(frame)
	m.id = id
	if op == wiremessage.OpCompressed {
		m.compressed = true
		original, packed, _ := wiremessage.ReadCompressedOriginalOpCode(rest)
		unpacked, packed, _ := wiremessage.ReadCompressedUncompressedSize(packed)
		compressor, packed, _ := wiremessage.ReadCompressedCompressorID(packed)
		var err error
		rest, err = xdriver.DecompressPayload(packed, xdriver.CompressionOpts{Compressor: compressor, UncompressedSize: unpacked})
		if err != nil {
			f.t.Errorf("decompress: %v", err)
			return nil
		}
		op = original
	}
	if op == opQuery {
		doc := f.describe()
		out := wiremessage.AppendHeader(nil, int32(16+20+len(doc)), 1, id, wiremessage.OpReply)
		out = wiremessage.AppendReplyFlags(out, 0)
		out = wiremessage.AppendReplyCursorID(out, 0)
		out = wiremessage.AppendReplyStartingFrom(out, 0)
		out = wiremessage.AppendReplyNumberReturned(out, 1)
		return append(out, doc...)
	}
	m.read(rest[4:])
	first, _ := m.body.IndexErr(0)
	switch first.Key() {
	case "hello", "isMaster", "ismaster":
		return f.message(id, f.describe(), false)
	case "endSessions":
		return f.message(id, drivertest.Doc(f.t, bson.D{{Key: "ok", Value: 1}}), false)
	}
	f.mu.Lock()
	f.got = append(f.got, m)
	answer := f.answer
	f.mu.Unlock()
	reply := drivertest.Doc(f.t, bson.D{{Key: "ok", Value: 1}})
	if answer != nil {
		r, raw := answer(m)
		if raw != nil {
			return raw
		}
		if r == nil {
			return nil
		}
		reply = r
	}
	return f.message(id, reply, m.compressed)
}

// read reads the sections of a message.
func (m *received) read(rest []byte) {
	for len(rest) > 0 {
		kind := rest[0]
		rest = rest[1:]
		n := binary.LittleEndian.Uint32(rest)
		section := rest[:n]
		rest = rest[n:]
		if kind == 0 {
			m.body = bson.Raw(section)
			continue
		}
		section = section[4:]
		end := 0
		for section[end] != 0 {
			end++
		}
		name := string(section[:end])
		for section = section[end+1:]; len(section) > 0; {
			n := binary.LittleEndian.Uint32(section)
			m.sections[name] = append(m.sections[name], bson.Raw(section[:n]))
			section = section[n:]
		}
	}
}

func (f *fake) describe() bson.Raw {
	doc := append(bson.D{
		{Key: "helloOk", Value: true},
		{Key: "isWritablePrimary", Value: true},
		{Key: "ismaster", Value: true},
		{Key: "maxWireVersion", Value: 17},
		{Key: "minWireVersion", Value: 0},
		{Key: "maxBsonObjectSize", Value: 16 << 20},
		{Key: "maxMessageSizeBytes", Value: 48_000_000},
		{Key: "maxWriteBatchSize", Value: 100_000},
		{Key: "logicalSessionTimeoutMinutes", Value: 30},
	}, f.hello...)
	return drivertest.Doc(f.t, append(doc, bson.E{Key: "ok", Value: 1}))
}

func (f *fake) message(to int32, doc bson.Raw, compressed bool) []byte {
	payload := append(append([]byte{0, 0, 0, 0}, 0), doc...)
	if !compressed || f.compressor == wiremessage.CompressorNoOp {
		out := wiremessage.AppendHeader(nil, int32(16+len(payload)), 1, to, wiremessage.OpMsg)
		return append(out, payload...)
	}
	packed, err := xdriver.CompressPayload(payload, xdriver.CompressionOpts{Compressor: f.compressor, ZlibLevel: 6, ZstdLevel: 6})
	if err != nil {
		f.t.Errorf("compress: %v", err)
		return nil
	}
	out := wiremessage.AppendHeader(nil, int32(25+len(packed)), 1, to, wiremessage.OpCompressed)
	out = wiremessage.AppendCompressedOriginalOpCode(out, wiremessage.OpMsg)
	out = wiremessage.AppendCompressedUncompressedSize(out, int32(len(payload)))
	out = wiremessage.AppendCompressedCompressorID(out, f.compressor)
	return append(out, packed...)
}
