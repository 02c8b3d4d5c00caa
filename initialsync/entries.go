package initialsync

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// The document with the feature compatibility version.
const (
	versions    = "admin.system.version"
	fcvDocument = "featureCompatibilityVersion"
)

// ErrFCVChanged reports that the source's feature compatibility version was changed
// during the copy.
var ErrFCVChanged = errors.New("the source's feature compatibility version was changed while it was copied")

// entries checks the oplog of a copy. It is safe for concurrent use.
type entries struct {
	mu   sync.Mutex // guards copy
	copy checkpoint.Copy
}

// advanced sets the recorded progress of the copy.
func (e *entries) advanced(c *checkpoint.Copy) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.copy = *c
}

// check returns [ErrFCVChanged] if entries change the feature compatibility version while
// the copy is not consistent.
func (e *entries) check(list []oplog.Entry) error {
	e.mu.Lock()
	begin, stop := e.copy.Begin, e.copy.Stop
	e.mu.Unlock()
	for i := range list {
		x := &list[i]
		if x.NS != versions || !x.Kind.IsCRUD() || !x.OpTime.After(begin) || !bytes.Contains(x.Raw, []byte(fcvDocument)) {
			continue
		}
		if !stop.IsNull() && x.OpTime.After(stop) {
			continue
		}
		return fmt.Errorf("%w, at %s", ErrFCVChanged, x.OpTime)
	}
	return nil
}
