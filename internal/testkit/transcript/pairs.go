package transcript

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// kind is a kind of value that differs from run to run.
type kind string

const (
	kindCursor kind = "cursor id"
	kindUUID   kind = "uuid"
	kindTerm   kind = "term"
	kindID     kind = "generated _id"
	kindName   kind = "temporary name"
	kindClock  kind = "time of the server's clock"
	kindHost   kind = "host"
	kindStamp  kind = "prepareTimestamp"
)

// pairs are the values of the recording that stand for other ones in this run.
// Each recorded value stands for one, and each of ours is that of one.
type pairs struct {
	ours, recorded map[string]string
	// sent are the ObjectIDs that the client made, and that are the same therefore.
	sent map[string]bool
	// stamps are pairs of timestamps that have to be of the same entry; whether
	// they are is known when the logs have been compared.
	stamps []stampPair
	// reordered is set where columns have another order: see ruleColumns.
	reordered bool
}

// stampPair is a recorded timestamp and ours, and where they stand.
type stampPair struct {
	part      Part
	at        int
	path      string
	want, got bson.Timestamp
}

func newPairs() *pairs {
	return &pairs{ours: map[string]string{}, recorded: map[string]string{}, sent: map[string]bool{}}
}

// send takes note of the ObjectIDs in a document that is sent.
func (p *pairs) send(doc bson.Raw) {
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Type {
		case bson.TypeObjectID:
			p.sent[string(it.Value)] = true
		case bson.TypeEmbeddedDocument, bson.TypeArray:
			p.send(it.Value)
		default:
		}
	}
}

// match reports whether want may stand for got, and takes note that it does.
func (p *pairs) match(k kind, want, got string) bool {
	w, g := string(k)+"\x00"+want, string(k)+"\x00"+got
	ours, hasOurs := p.ours[w]
	recorded, hasRecorded := p.recorded[g]
	if hasOurs || hasRecorded {
		return ours == got && recorded == want
	}
	p.ours[w], p.recorded[g] = got, want
	return true
}

// lookup returns what a recorded value stands for in this run.
func (p *pairs) lookup(k kind, want string) (string, bool) {
	got, ok := p.ours[string(k)+"\x00"+want]
	return got, ok
}

// original returns the recorded value that one of ours stands for.
func (p *pairs) original(k kind, got string) (string, bool) {
	want, ok := p.recorded[string(k)+"\x00"+got]
	return want, ok
}
