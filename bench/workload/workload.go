package workload

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// IDType is the type of the documents' _id.
type IDType string

// The types of _id.
const (
	ObjectID IDType = "objectid"
	Int32    IDType = "int32"
	Int64    IDType = "int64"
	String   IDType = "string"
	UUID     IDType = "uuid"
	Decimal  IDType = "decimal"
	Document IDType = "document"
)

// Mix says how often each kind of operation comes, as weights. All zero means
// inserts only.
type Mix struct {
	Insert, Update, Delete, Replace float64
}

// Deltas says what updates change, as weights. All zero means Set.
type Deltas struct {
	// Set sets two scalar fields.
	Set float64
	// Many sets ten.
	Many float64
	// Nested sets a field of a document in the document.
	Nested float64
	// Array changes an element of an array, and appends to it.
	Array float64
	// Unset removes a field, and adds another.
	Unset float64
	// Dotted changes a field whose name modifiers cannot express, so that it takes
	// a pipeline.
	Dotted float64
}

// Workload is what is written, as a value. Zero fields mean the defaults given.
type Workload struct {
	// Name is that of a preset, or of what it was made from.
	Name string `json:"name"`
	// Seed decides everything random.
	Seed uint64 `json:"seed"`
	// Ops is how many operations there are. Default 100,000.
	Ops int `json:"ops"`
	// Documents is how many there are before the first operation, over all
	// namespaces. Updates and deletes need some.
	Documents int    `json:"documents"`
	Mix       Mix    `json:"mix"`
	Deltas    Deltas `json:"deltas"`
	// Size is the median size of a document in bytes, default 200. Spread is the
	// standard deviation of its logarithm: 0 means all alike.
	Size   int     `json:"size"`
	Spread float64 `json:"spread"`
	// Namespaces is the number of collections, 1 to 10,000. Default 4.
	Namespaces int `json:"namespaces"`
	// IDs is the type of _id. Default ObjectID.
	IDs IDType `json:"ids"`
	// Indexes is how many a collection has beside that on _id.
	Indexes int `json:"indexes"`
	// Distinct makes no two operations of the measured stretch meet one document.
	// Documents has to be enough for that.
	Distinct bool `json:"distinct"`
	// Hot is how many documents HotShare of all updates fall on.
	Hot      int     `json:"hot"`
	HotShare float64 `json:"hotShare"`
	// Zipf, if above 1, is the exponent of a Zipf distribution over the documents.
	Zipf float64 `json:"zipf"`
	// TxnShare is the share of operations that are in a transaction, TxnOps how
	// many a transaction has. Default 8 where TxnShare is set.
	TxnShare float64 `json:"txnShare"`
	TxnOps   int     `json:"txnOps"`
	// MassEvery: after so many operations MassDeletes follow each other. Zero
	// means never.
	MassEvery   int `json:"massEvery"`
	MassDeletes int `json:"massDeletes"`
	// DDLEvery: after so many operations a collection of its own is made, gets an
	// index, and is dropped. Zero means never.
	DDLEvery int `json:"ddlEvery"`
	// Phases, if set, come one after the other instead of a mix: N inserts, N
	// updates, N/2 deletes with Ops = 2.5 N. It is the backlog of the presets.
	Phases bool `json:"phases"`
	// File is a recorded oplog, BSON documents one after another, in place of
	// everything above but Name and Ops, which cuts it off where it is not zero.
	File string `json:"file,omitempty"`
}

// Presets returns the named workloads, in the order in which they are shown:
// small-inserts, updates, deletes, mixed, hot, coalesce, large-docs, txn,
// many-namespaces, ycsb-a, backlog.
func Presets() []Workload { panic("not written yet") }

// Preset returns one of them. The error of an unknown one names all.
func Preset(name string) (Workload, error) { panic("not written yet") }

// Validate returns all faults, joined.
func (w Workload) Validate() error { panic("not written yet") }

// Collection is one that is there before the first operation.
type Collection struct {
	NS   oplog.Namespace
	UUID oplog.UUID
	// Indexes are as listIndexes shows them, that on _id first.
	Indexes []bson.Raw
	// Documents are what it has.
	Documents []bson.Raw
}

// Op is one operation, in every form.
type Op struct {
	// Kind is KindInsert, KindUpdate, KindDelete or KindCommand. A replacement is a
	// KindUpdate with a Doc.
	Kind oplog.Kind
	NS   oplog.Namespace
	UUID oplog.UUID
	ID   bson.RawValue
	// Doc is the document of an insert or a replacement.
	Doc bson.Raw
	// Diff is the diff of a $v: 2 delta, Modifier the update that a client sends
	// for it: a document of modifiers, or an array (a pipeline) where IsPipeline.
	Diff       bson.Raw
	Modifier   bson.Raw
	IsPipeline bool
	// Command is the o of a command's entry, Statement what a client sends.
	Command, Statement bson.Raw
	// Txn numbers the transaction from 1, 0 without one; TxnEnd is its last
	// operation.
	Txn    int
	TxnEnd bool
}

// Generator makes a workload's operations, the same each time. It is for one
// goroutine.
type Generator struct{}

// New checks a workload and gets ready to make it.
func New(w Workload) (*Generator, error) { panic("not written yet") }

// Collections returns what has to be there before the first operation. The result
// is made anew by each call.
func (g *Generator) Collections() ([]Collection, error) { panic("not written yet") }

// Next returns the next operation, false behind the last one. What it points to
// stays as it is.
func (g *Generator) Next() (Op, bool, error) { panic("not written yet") }

// Log makes the entries of a workload.
type Log struct{}

// NewLog makes the log of a workload whose first entry comes after first, as a
// server of term first.Term would have written it: 1,000 entries have one second, so
// that the entries' wall clocks ascend.
func NewLog(w Workload, first oplog.OpTime) (*Log, error) { panic("not written yet") }

// Next returns the next entry and how many operations it has, false behind the last
// one. A transaction is one applyOps entry.
func (l *Log) Next() (entry bson.Raw, ops int, ok bool, err error) { panic("not written yet") }

// Last is the optime of the newest entry that Next has returned.
func (l *Log) Last() oplog.OpTime { panic("not written yet") }
