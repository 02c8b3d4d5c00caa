package write

import (
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// validator is a collection's document validator.
type validator struct {
	options bson.Raw
	match   *serverquery.Validator
	// moderate accepts documents that did not match before; warn accepts all.
	moderate, warn bool
}

// validatorCache keeps compiled validators. They are used within Path.Write only,
// by one at a time.
type validatorCache struct {
	mu     sync.Mutex
	byUUID map[oplog.UUID]*validator
}

// maxValidators is how many are kept before the cache is emptied.
const maxValidators = 1000

// check refuses a new document that does not match.
func (v *validator) check(doc bson.Raw) error {
	if v.warn {
		return nil
	}
	return v.match.Check(doc)
}

// checkUpdate refuses the new state of a document that does not match.
func (v *validator) checkUpdate(old, doc bson.Raw) error {
	if v.moderate {
		if before := v.match.Check(old); before != nil {
			return nil //nolint:nilerr // a document that did not match before may go on so
		}
	}
	return v.check(doc)
}

// validator returns that of a collection, nil if there is none.
func (w *writer) validator(coll *storage.Collection) (*validator, error) {
	if len(coll.Options) <= rawbson.MinSize {
		return nil, nil
	}
	e, ok := rawbson.Lookup(coll.Options, "validator")
	filter, isDoc := e.Document()
	if !ok || !isDoc || len(filter) <= rawbson.MinSize {
		return nil, nil
	}
	cache := &w.t.checks
	cache.mu.Lock()
	v := cache.byUUID[coll.UUID]
	cache.mu.Unlock()
	if v != nil && &v.options[0] == &coll.Options[0] {
		return v, nil
	}
	match, err := serverquery.CompileValidator(filter, serverquery.Options{Collator: coll.Collator})
	if err != nil {
		return nil, err
	}
	v = &validator{options: coll.Options, match: match}
	level, _ := rawbson.Lookup(coll.Options, "validationLevel")
	action, _ := rawbson.Lookup(coll.Options, "validationAction")
	if text, _ := level.Text(); text == "off" {
		v.warn = true
	} else {
		v.moderate = text == "moderate"
	}
	if text, _ := action.Text(); text == "warn" {
		v.warn = true
	}
	cache.mu.Lock()
	defer cache.mu.Unlock()
	if cache.byUUID == nil || len(cache.byUUID) >= maxValidators {
		cache.byUUID = map[oplog.UUID]*validator{}
	}
	cache.byUUID[coll.UUID] = v
	return v, nil
}
