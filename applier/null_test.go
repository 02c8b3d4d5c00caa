package applier

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
)

// nullServer is a primary on loopback that reads every command and replies as if all its
// statements had matched their documents. It stores nothing.
type nullServer struct {
	listener net.Listener
	delay    time.Duration // before the replies to pipelined commands, except the handshake
	commands atomic.Int64

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
}

const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013
)

// startNull starts one, and a connection to it. Both end with the test.
func startNull(t testing.TB, delay time.Duration) (*nullServer, mongo.Caller) {
	t.Helper()
	s := &nullServer{
		listener: must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0")),
		delay:    delay, conns: map[net.Conn]bool{},
	}
	var running sync.WaitGroup
	running.Go(func() { s.accept(&running) })
	t.Cleanup(func() {
		_ = s.listener.Close()
		s.mu.Lock()
		for c := range s.conns {
			_ = c.Close()
		}
		s.conns = nil
		s.mu.Unlock()
		running.Wait()
	})
	o := must[*driver.Options](t)(driver.Parse(driver.Config{URI: "mongodb://" + s.listener.Addr().String() + "/?replicaSet=null"}))
	set := must[*driver.Set](t)(driver.Open(t.Context(), o))
	t.Cleanup(set.Close)
	return s, set
}

func (s *nullServer) accept(running *sync.WaitGroup) {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.conns == nil {
			_ = c.Close()
		} else {
			s.conns[c] = true
			running.Go(func() { _ = s.serve(c) })
		}
		s.mu.Unlock()
	}
}

func (s *nullServer) serve(c net.Conn) error {
	defer c.Close() //nolint:errcheck // It is only read from.
	from := bufio.NewReaderSize(c, 64<<10)
	var in, out []byte
	var head [16]byte
	var late time.Duration
	for {
		// Pipelined commands get their replies together.
		if len(out) > 0 && from.Buffered() < len(head) {
			if late > 0 {
				<-time.After(late)
			}
			if _, err := c.Write(out); err != nil {
				return err
			}
			out = out[:0]
		}
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return err
		}
		n := int(binary.LittleEndian.Uint32(head[:])) - len(head)
		if n < 0 || n > 48<<20 {
			return errors.New("the length of a message")
		}
		if cap(in) < n {
			in = make([]byte, n)
		}
		in = in[:n]
		if _, err := io.ReadFull(from, in); err != nil {
			return err
		}
		op := binary.LittleEndian.Uint32(head[12:])
		name, statements := "isMaster", int32(0)
		if op == opMsg {
			name, statements = commandOf(in)
		}
		var reply []byte
		switch name {
		case "hello", "isMaster", "ismaster":
			reply = s.hello()
		default:
			s.commands.Add(1)
			late = s.delay
			reply = bsoncore.NewDocumentBuilder().AppendInt32("n", statements).
				AppendInt32("nModified", statements).AppendDouble("ok", 1).Build()
		}
		out = appendReply(out, op, head[4:8], reply)
	}
}

// commandOf returns the name of a command, and how many documents go with it.
func commandOf(msg []byte) (name string, statements int32) {
	for rest := msg[4:]; len(rest) > 4; {
		kind := rest[0]
		rest = rest[1:]
		size := int(binary.LittleEndian.Uint32(rest))
		section := rest[:size]
		rest = rest[size:]
		if kind == 0 {
			name = string(section[5 : 5+bytes.IndexByte(section[5:], 0)])
			continue
		}
		docs := section[4+bytes.IndexByte(section[4:], 0)+1:]
		for len(docs) > 0 {
			docs = docs[binary.LittleEndian.Uint32(docs):]
			statements++
		}
	}
	return name, statements
}

func (s *nullServer) hello() []byte {
	host := s.listener.Addr().String()
	return bsoncore.NewDocumentBuilder().
		AppendBoolean("helloOk", true).AppendBoolean("isWritablePrimary", true).AppendBoolean("ismaster", true).
		AppendString("setName", "null").AppendInt32("setVersion", 1).AppendObjectID("electionId", bson.ObjectID{1}).
		AppendArray("hosts", bsoncore.NewArrayBuilder().AppendString(host).Build()).
		AppendString("me", host).AppendString("primary", host).
		AppendInt32("maxBsonObjectSize", 16<<20).AppendInt32("maxMessageSizeBytes", 48_000_000).AppendInt32("maxWriteBatchSize", 100_000).
		AppendInt32("logicalSessionTimeoutMinutes", 30).AppendInt32("minWireVersion", 0).AppendInt32("maxWireVersion", 17).
		AppendDouble("ok", 1).Build()
}

func appendReply(dst []byte, op uint32, to, doc []byte) []byte {
	from := len(dst)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = append(dst, to...)
	if op == opQuery {
		dst = binary.LittleEndian.AppendUint32(dst, opReply)
		dst = append(dst, make([]byte, 16)...)
		dst = binary.LittleEndian.AppendUint32(dst, 1)
	} else {
		dst = binary.LittleEndian.AppendUint32(dst, opMsg)
		dst = append(dst, 0, 0, 0, 0, 0)
	}
	dst = append(dst, doc...)
	binary.LittleEndian.PutUint32(dst[from:], uint32(len(dst)-from))
	// The cursor id and the start in an OP_REPLY are 0.
	return dst
}
