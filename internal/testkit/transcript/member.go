package transcript

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// member is the set that a recording is replayed against.
type member struct {
	set *mongosim.Set

	// mu guards uuids, those to be given out next, and made, how many were made
	// because there were none.
	mu    sync.Mutex
	uuids []oplog.UUID
	made  uint64
}

// errUnplayed is a recording of a version that the embedded set cannot play.
var errUnplayed = errors.New("the embedded set does not play version")

func startMember(ctx context.Context, r *recording, o Options) (*member, error) {
	m := &member{}
	parts := strings.SplitN(r.scenario.Meta.ServerVersion, ".", 3)
	dialect, fcv := strings.Join(parts[:min(2, len(parts))], "."), r.scenario.Meta.FCV
	if o.dialect != "" {
		dialect, fcv = o.dialect, ""
	}
	if !slices.Contains(mongosim.Dialects(), dialect) {
		return nil, fmt.Errorf("%w %s", errUnplayed, r.scenario.Meta.ServerVersion)
	}
	set, err := mongosim.Start(ctx, mongosim.Options{
		Dialect: dialect,
		FCV:     fcv, NewUUID: m.newUUID, Log: o.Log,
		TTLInterval: -1, // a pass would come at another time than the recorded server's
	})
	if err != nil {
		return nil, fmt.Errorf("transcript: start a member for %s: %w", r.scenario.Name, err)
	}
	m.set = set
	return m, nil
}

func (m *member) close() { m.set.Close() }

// newUUID gives out the next UUID of the recording. Where there is none, such as
// before the recording begins, it makes one.
func (m *member) newUUID() oplog.UUID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.uuids) > 0 {
		u := m.uuids[0]
		m.uuids = m.uuids[1:]
		return u
	}
	m.made++
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("made"), m.made))
	return oplog.UUID(sum[:16])
}

// giveOut makes these the UUIDs to be given out from now on.
func (m *member) giveOut(uuids []oplog.UUID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uuids = uuids
}

// readLog returns all entries of the member, as a follower reads them.
func readLog(ctx context.Context, conn *wire.Client) ([]bson.Raw, error) {
	return all(ctx, conn, "local", bson.D{{Key: "find", Value: "oplog.rs"}})
}

func (m *member) awaitPrimary(ctx context.Context) error {
	_, err := m.set.AwaitPrimary(ctx)
	return err
}

// dial opens a connection and shakes hands as a driver does.
func (m *member) dial(ctx context.Context) (*wire.Client, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.set.Member(0).Host())
	if err != nil {
		return nil, fmt.Errorf("transcript: connect: %w", err)
	}
	client := wire.NewClient(conn)
	_, err = must(ctx, client, "admin", bson.D{{Key: "hello", Value: int32(1)}, {Key: "helloOk", Value: true}})
	return client, err
}

// must runs a command that cannot be refused.
func must(ctx context.Context, conn *wire.Client, db string, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: db}))
	if err != nil {
		return nil, fmt.Errorf("transcript: %s on %s: %w", cmd[0].Key, db, err)
	}
	reply, err := ask(ctx, conn, wire.Request{Body: body})
	if err != nil {
		return nil, fmt.Errorf("transcript: %s on %s: %w", cmd[0].Key, db, err)
	}
	ok, _ := rawbson.Lookup(reply, "ok")
	_, wrong := rawbson.Lookup(reply, "writeErrors")
	if n, _ := ok.Int64(); n != 1 || wrong {
		return nil, fmt.Errorf("transcript: %s on %s: refused: %s", cmd[0].Key, db, reply)
	}
	return reply, nil
}

// loadBefore writes the data that was there at the start, by commands. What the
// log creates was not.
func (m *member) loadBefore(ctx context.Context, conn *wire.Client, r *recording) error {
	for i := range r.before.Collections {
		c := &r.before.Collections[i]
		if r.created[c.UUID] && !c.UUID.IsZero() || c.NS.IsSystemViews() {
			continue
		}
		if err := m.loadCollection(ctx, conn, c); err != nil {
			return fmt.Errorf("transcript: load %s of before: %w", c.NS, err)
		}
	}
	return nil
}

// idIndexName is the name of the index on _id, as a BSON value.
var idIndexName = bsoncore.AppendString(nil, "_id_")

// insertedTogether is how many documents of before/ go into one command.
const insertedTogether = 100

func (m *member) loadCollection(ctx context.Context, conn *wire.Client, c *memstore.CollectionState) error {
	db, name := c.NS.DB(), c.NS.Collection()
	if !c.NS.IsBuckets() { // creating the time-series collection makes them
		m.giveOut([]oplog.UUID{c.UUID})
		create := bson.D{{Key: "create", Value: name}}
		it := rawbson.NewIter(c.Options)
		for it.Next() {
			create = append(create, bson.E{Key: it.Name(), Value: it.Raw()})
		}
		if _, err := must(ctx, conn, db, create); err != nil {
			return err
		}
		m.giveOut(nil)
	}
	var indexes bson.A
	for _, spec := range c.Indexes {
		if name, _ := rawbson.Lookup(spec, "name"); !bytes.Equal(name.Value, idIndexName) {
			indexes = append(indexes, spec)
		}
	}
	if len(indexes) > 0 {
		cmd := bson.D{{Key: "createIndexes", Value: name}, {Key: "indexes", Value: indexes}}
		if _, err := must(ctx, conn, db, cmd); err != nil {
			return err
		}
	}
	for docs := c.Documents; len(docs) > 0; {
		n := min(insertedTogether, len(docs))
		if _, err := must(ctx, conn, db, bson.D{{Key: "insert", Value: name}, {Key: "documents", Value: docs[:n]}}); err != nil {
			return err
		}
		docs = docs[n:]
	}
	return nil
}
