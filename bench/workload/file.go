package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/oplog/update"
)

const (
	// blockBytes is how much of a file is read at a time.
	blockBytes = 1 << 20
	// maxRecorded is larger than an entry that a server writes, in bytes.
	maxRecorded = 64 << 20
	// openBytes is what open transactions may take, in bytes: nothing is spilled
	// to files, which would have to be removed.
	openBytes = 1 << 40
)

// blocks reads the documents of a file. The file is open only while a block is read,
// so that a caller that does not read to the end leaves nothing open.
type blocks struct {
	path string
	// at is the position of the next document, and rest the data read after it.
	at   int64
	rest []byte
}

// next returns the next document, checked throughout, or io.EOF. It is a view into
// memory that is never written again.
func (b *blocks) next() (bson.Raw, error) {
	if err := b.fill(4); err != nil {
		return nil, err
	}
	switch {
	case len(b.rest) == 0:
		return nil, io.EOF
	case len(b.rest) < 4:
		return nil, b.fault(fmt.Errorf("a document is cut off after %d bytes", len(b.rest)))
	}
	size := int(int32(binary.LittleEndian.Uint32(b.rest)))
	if size < rawbson.MinSize || size > maxRecorded {
		return nil, b.fault(fmt.Errorf("not BSON: a document with a length of %d", size))
	}
	if err := b.fill(size); err != nil {
		return nil, err
	}
	if len(b.rest) < size {
		return nil, b.fault(fmt.Errorf("a document of %d bytes is cut off after %d", size, len(b.rest)))
	}
	doc := bson.Raw(b.rest[:size:size])
	if err := rawbson.Validate(doc); err != nil {
		return nil, b.fault(fmt.Errorf("not BSON: %w", err))
	}
	b.at += int64(size)
	b.rest = b.rest[size:]
	return doc, nil
}

func (b *blocks) fault(err error) error {
	return fmt.Errorf("read %s at byte %d: %w", b.path, b.at, err)
}

// fill reads on until rest has n bytes, or all up to the file's end.
func (b *blocks) fill(n int) error {
	if len(b.rest) >= n {
		return nil
	}
	f, err := os.Open(b.path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	block := make([]byte, max(blockBytes, n))
	had := copy(block, b.rest)
	read, err := f.ReadAt(block[had:], b.at+int64(had))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	b.rest = block[:had+read]
	return nil
}

// recorded is an entry of a recording, and the operations that take effect with it.
type recorded struct {
	oplog.Entry
	// ops are those of the entry, or of the transaction that ends with it. Those
	// on local, admin and config are left out: they belong to the set that wrote them.
	ops   []oplog.Op
	group bool
}

// groups reads the entries of a recording.
type groups struct {
	blocks
	chains *txn.Assembler
	limit  int // of operations, 0 for none
	done   int
	ended  bool // by the limit
}

func openGroups(path string, limit int) (*groups, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("read a recorded workload: %w", err)
	}
	chains, err := txn.New(txn.Config{MemoryBytes: openBytes})
	if err != nil {
		return nil, err
	}
	return &groups{blocks: blocks{path: path}, chains: chains, limit: limit}, nil
}

// next returns the next entry, false after the last one and if the next one
// would exceed the limit.
func (g *groups) next() (recorded, bool, error) {
	at := g.at
	var r recorded
	if g.ended {
		return r, false, nil
	}
	raw, err := g.blocks.next()
	switch {
	case errors.Is(err, io.EOF):
		return r, false, nil
	case err != nil:
		return r, false, err
	}
	if err := r.read(raw, g.chains); err != nil {
		if broken, ok := errors.AsType[*txn.BrokenChainError](err); ok {
			err = fmt.Errorf("it is part of a transaction that began before the recording: %w", broken)
		}
		return r, false, fmt.Errorf("read %s: entry at byte %d: %w", g.path, at, err)
	}
	if g.limit > 0 && g.done+len(r.ops) > g.limit {
		g.ended = true // however small the next ones are
		return r, false, nil
	}
	g.done += len(r.ops)
	return r, true, nil
}

func (r *recorded) read(raw bson.Raw, chains *txn.Assembler) error {
	if err := r.Parse(raw); err != nil {
		return err
	}
	result, err := chains.Add(&r.Entry)
	if err != nil {
		return err
	}
	switch result.Outcome {
	case txn.Pass:
		r.add(r.Op)
	case txn.Committed:
		r.group = true
		for op, err := range result.Txn.Ops() {
			if err != nil {
				return err
			}
			r.add(op)
		}
		return result.Txn.Close()
	default:
	}
	return nil
}

func (r *recorded) add(op oplog.Op) {
	switch op.NS.DB() {
	case "local", "admin", "config":
		return
	}
	if op.Kind != oplog.KindNoop {
		r.ops = append(r.ops, op)
	}
}

// recording yields the operations of a recording.
type recording struct {
	groups *groups
	queue  []Op
	txns   int
}

func openRecording(path string, limit int) (*recording, error) {
	g, err := openGroups(path, limit)
	return &recording{groups: g}, err
}

func (r *recording) next() (Op, bool, error) {
	for len(r.queue) == 0 {
		entry, ok, err := r.groups.next()
		if err != nil || !ok {
			return Op{}, false, err
		}
		if entry.group && len(entry.ops) > 0 {
			r.txns++
		}
		for i := range entry.ops {
			op, err := recordedOp(&entry.ops[i])
			if err != nil {
				return Op{}, false, fmt.Errorf("read %s: entry %v: %w", r.groups.path, entry.OpTime, err)
			}
			if entry.group {
				op.Txn, op.TxnEnd = r.txns, i == len(entry.ops)-1
			}
			r.queue = append(r.queue, op)
		}
	}
	op := r.queue[0]
	r.queue = r.queue[1:]
	return op, true, nil
}

// recordedOp finds the forms of an operation.
func recordedOp(from *oplog.Op) (Op, error) {
	op := Op{Kind: from.Kind, NS: from.NS, UUID: from.UI, ID: from.ID}
	switch from.Kind {
	case oplog.KindInsert:
		op.Doc = from.O
		return op, nil
	case oplog.KindCommand:
		op.Command = from.O
		return op, nil
	case oplog.KindUpdate:
	default:
		return op, nil
	}
	form, err := update.Classify(from.O)
	if err != nil {
		return op, err
	}
	switch form {
	case update.FormReplacement:
		op.Doc = from.O
	case update.FormDelta:
		if op.Diff, err = update.DeltaOf(from.O); err != nil {
			return op, err
		}
		c, err := update.CompileDelta(op.Diff, update.CompileOptions{Guarantee: update.GuaranteePreImage})
		switch {
		case errors.Is(err, update.ErrNotCompilable):
		case err != nil:
			return op, err
		default:
			op.Modifier, op.IsPipeline = bson.Raw(c.U.Value), c.Form == update.CompiledPipeline
		}
	case update.FormModifiers:
		modifier, ok, err := update.AppendClientModifiers(nil, from.O, true)
		if err != nil {
			return op, err
		}
		if !ok {
			return op, fmt.Errorf("no client can send the update %v", from.O)
		}
		op.Modifier = modifier
	}
	return op, nil
}

// collectionsOf returns the collections that a recording writes to without having
// made them.
func collectionsOf(path string, limit int) ([]Collection, error) {
	g, err := openGroups(path, limit)
	if err != nil {
		return nil, err
	}
	var all []Collection
	ids, names := map[oplog.UUID]bool{}, map[oplog.Namespace]bool{}
	for {
		entry, ok, err := g.next()
		if err != nil {
			return nil, err
		}
		if !ok {
			return all, nil
		}
		for i := range entry.ops {
			op := &entry.ops[i]
			ns := op.NS
			if op.Kind == oplog.KindCommand {
				if ns, _, err = op.Target(); err != nil {
					return nil, fmt.Errorf("read %s: entry %v: %w", path, entry.OpTime, err)
				}
			}
			known := ids[op.UI] || op.UI.IsZero() && names[ns]
			if known || !ns.IsCollection() {
				continue
			}
			ids[op.UI] = !op.UI.IsZero()
			if made := op.Command == oplog.CommandCreate; !made && !op.UI.IsZero() && !names[ns] {
				all = append(all, Collection{NS: ns.Clone(), UUID: op.UI, Indexes: []bson.Raw{indexSpec("_id", "_id_")}})
			}
			names[ns.Clone()] = true
		}
	}
}
