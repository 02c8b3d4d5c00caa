package feedback

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Mode is the way in which progress is reported to the source.
type Mode uint8

const (
	// None reports nothing.
	None Mode = iota
	// Member sends replSetUpdatePosition for a member of the source's configuration.
	Member
	// Document writes a document into a collection of the source.
	Document
)

// String returns the mode's name.
func (m Mode) String() string {
	switch m {
	case None:
		return "none"
	case Member:
		return "member"
	case Document:
		return "document"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// Source is the member of the source that is read from.
type Source struct {
	// Host is its address.
	Host string
	// Caller runs commands on it.
	Caller mongo.Caller
	// Committed is the newest commit point that it has reported, null if none, and
	// CommittedWall that entry's wall time in milliseconds since the epoch, 0 if not
	// known.
	Committed     oplog.OpTime
	CommittedWall int64
	// ConfigVersion is the version of the set's configuration, -1 if not known.
	ConfigVersion int64
}

// Upstream provides the member that is read from.
type Upstream interface {
	// Upstream returns that member, false if there is none at present. It is called
	// before each report, and must not block.
	Upstream() (Source, bool)
}

// Config configures a Feedback.
type Config struct {
	Mode Mode
	// MemberID is the _id of the configured member, for Member.
	MemberID int
	// Upstream is the member that Member reports to.
	Upstream Upstream
	// Primary runs commands on the source's primary, for Document.
	Primary mongo.Caller
	// DB is the database of the documents, by default "replicator". It must not be
	// mirrored.
	DB string
	// Link is the document's _id.
	Link string
	// KeepAlive is the longest time between two reports. The default is 5 s for
	// Member, which should be half of the source's election timeout, and 10 s for
	// Document.
	KeepAlive time.Duration

	// Observer receives an event when reporting starts, fails, and works again. May
	// be nil.
	Observer event.Observer
	// Registry gets the metrics. May be nil.
	Registry prometheus.Registerer
	// Meter measures the goroutine that reports. May be nil.
	Meter *metric.Meter
}

func (c *Config) setDefaults() {
	if c.DB == "" {
		c.DB = "replicator"
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = 5 * time.Second
		if c.Mode == Document {
			c.KeepAlive = 10 * time.Second
		}
	}
}

func (c *Config) validate() error {
	var faults []error
	switch c.Mode {
	case None:
	case Member:
		if c.Upstream == nil {
			faults = append(faults, errors.New("no member to report to"))
		}
		if c.MemberID < 0 {
			faults = append(faults, fmt.Errorf("member id %d: want 0 or more", c.MemberID))
		}
	case Document:
		if c.Primary == nil {
			faults = append(faults, errors.New("no primary to write a document to"))
		}
		if c.Link == "" {
			faults = append(faults, errors.New("no name of a link for the document"))
		}
	default:
		faults = append(faults, fmt.Errorf("unknown mode %s", c.Mode))
	}
	if c.KeepAlive < 0 {
		faults = append(faults, fmt.Errorf("keep-alive of %v: want more than 0", c.KeepAlive))
	}
	return errors.Join(faults...)
}
