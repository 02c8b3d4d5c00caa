package workload

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// Database is the one in which generated workloads write.
const Database = "bench"

// Mix says how often each kind of operation comes, as weights. All zero means
// inserts only.
type Mix struct {
	Insert  float64 `json:"insert"`
	Update  float64 `json:"update"`
	Delete  float64 `json:"delete"`
	Replace float64 `json:"replace"`
}

// Deltas are the weights of the kinds of updates. All zero means Set.
type Deltas struct {
	// Set sets two scalar fields.
	Set float64 `json:"set"`
	// Many sets ten.
	Many float64 `json:"many"`
	// Nested sets a field of a document in the document.
	Nested float64 `json:"nested"`
	// Array changes an element of an array, and appends to it.
	Array float64 `json:"array"`
	// Unset removes a field, and adds another.
	Unset float64 `json:"unset"`
	// Dotted changes a field whose name modifiers cannot express, so that it takes
	// a pipeline.
	Dotted float64 `json:"dotted"`
	// Text writes a new text.
	Text float64 `json:"text"`
}

// Workload describes the operations to write. Zero fields mean the stated
// defaults.
type Workload struct {
	// Name is that of its preset or file.
	Name string `json:"name"`
	// Seed is the seed of everything random.
	Seed uint64 `json:"seed"`
	// Ops is how many operations there are. Default 100,000.
	Ops int `json:"ops"`
	// Documents is how many there are before the first operation, over all
	// namespaces. Updates and deletes need some.
	Documents int    `json:"documents"`
	Mix       Mix    `json:"mix"`
	Deltas    Deltas `json:"deltas"`
	// Size is the median size of a document in bytes, default 200. Spread is the
	// standard deviation of its logarithm: 0 means all alike. Documents are no
	// smaller than what they have in addition to their text: see [Workload.Validate].
	Size   int     `json:"size"`
	Spread float64 `json:"spread"`
	// Namespaces is the number of collections, 1 to 10,000. Default 4.
	Namespaces int `json:"namespaces"`
	// Indexes is how many a collection has, not counting that on _id.
	Indexes int `json:"indexes"`
	// Distinct makes no two operations of the measured span meet one document.
	// Documents has to be enough for that.
	Distinct bool `json:"distinct"`
	// Alike is how many updates in a row have the same delta, as an updateMany logs
	// them. Default 1. It takes documents of which none is met twice.
	Alike int `json:"alike,omitempty"`
	// Hot is how many documents HotShare of all updates fall on.
	Hot      int     `json:"hot"`
	HotShare float64 `json:"hotShare"`
	// Repeat is how many operations in a row fall on one document, beginning with
	// its insert or an update, and ending early with its delete. Default 1.
	Repeat int `json:"repeat"`
	// TxnShare is the share of operations that are in a transaction, TxnOps how
	// many a transaction has. Default 8 where TxnShare is set.
	TxnShare float64 `json:"txnShare"`
	TxnOps   int     `json:"txnOps"`
	// Phases, if set, come one after the other instead of a mix: N inserts, N
	// updates, N/2 deletes with Ops = 2.5 N, each of a document of its own and in
	// another order. It is the backlog of the presets.
	Phases bool `json:"phases"`
	// File is a recorded oplog, BSON documents one after another, in place of
	// everything above but Name and Ops, which cuts it off where it is not zero:
	// what goes beyond it, and the transaction that would, is left out.
	File string `json:"file,omitempty"`
}

// Collection is a collection that exists before the first operation.
type Collection struct {
	NS   oplog.Namespace
	UUID oplog.UUID
	// Indexes are as listIndexes shows them, that on _id first.
	Indexes []bson.Raw
	// Documents are its documents.
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
	// In a recording an update of the older form has a Modifier alone, and a delta
	// that no client can send a Diff alone.
	Diff       bson.Raw
	Modifier   bson.Raw
	IsPipeline bool
	// Command is the o of a command's entry, which only recordings have.
	Command bson.Raw
	// Txn numbers the transaction from 1, 0 without one; TxnEnd is its last
	// operation.
	Txn    int
	TxnEnd bool
}
