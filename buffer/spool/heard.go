package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// heardName is the file with the newest entry that the source was heard to have.
const heardName = "heard.json"

var errNothingHeard = errors.New("spool: the stored newest entry of the source cannot be read")

// Heard has the newest entry that the source has reported, whether it was read or not. It is
// kept next to the files, for the time when the source cannot be asked any more.
type Heard struct {
	// ID is that of the spool, empty if a release has stored it that did not know that.
	ID string
	// OpTime is that of the newest entry that a member was heard to have, Member is which one.
	OpTime oplog.OpTime
	Member string
	// At is when it was heard, by this machine's clock.
	At time.Time
}

// heardJSON is a Heard in its file.
type heardJSON struct {
	ID     string    `json:"id,omitempty"`
	T      uint32    `json:"t"`
	I      uint32    `json:"i"`
	Term   int64     `json:"term"`
	Member string    `json:"member"`
	At     time.Time `json:"at"`
}

// NoteHeard writes it into the folder of a spool, in place of the one before. It is not
// synced: kill -9 of the process loses nothing, a power failure loses the last one.
func NoteHeard(dir string, h Heard) error {
	text, err := json.Marshal(heardJSON{h.ID, h.OpTime.TS.T, h.OpTime.TS.I, h.OpTime.Term, h.Member, h.At.UTC()})
	path := filepath.Join(dir, heardName)
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("spool: store the newest entry of the source: %w", err)
	}
	return nil
}

// ReadHeard returns the newest Heard that was stored, false if none was.
func ReadHeard(dir string) (Heard, bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, heardName))
	if errors.Is(err, fs.ErrNotExist) {
		return Heard{}, false, nil
	}
	if err != nil {
		return Heard{}, false, fmt.Errorf("spool: read the newest entry of the source: %w", err)
	}
	var h heardJSON
	if err := json.Unmarshal(text, &h); err != nil || h.T == 0 { // torn by a power failure
		return Heard{}, false, errors.Join(err, errNothingHeard)
	}
	return Heard{h.ID, oplog.OpTime{TS: bson.Timestamp{T: h.T, I: h.I}, Term: h.Term}, h.Member, h.At}, true, nil
}
