package status

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Copy is the state of a link's initial copy.
type Copy struct {
	// Phase is copying, replaying or done. Number counts the copies of the link;
	// VoidBefore says why the one before was void, empty for the first.
	Phase      string    `json:"phase"`
	Number     int64     `json:"number"`
	VoidBefore string    `json:"voidBefore,omitempty"`
	Started    time.Time `json:"started"`
	// Host is the member of the source that is copied.
	Host string `json:"host"`
	// FetchFrom is the optime from which the log is read, Begin the one after
	// which it is applied, Stop the one as of which the target is consistent, nil
	// while documents are being copied.
	FetchFrom *OpTime `json:"fetchFrom"`
	Begin     *OpTime `json:"begin"`
	Stop      *OpTime `json:"stop"`
	// Progress is nil once all documents are copied, and while no copy is
	// running.
	Progress *CopyProgress `json:"progress"`
	// Spool is the part of the log that is on disk, nil where there is none.
	Spool *Spool `json:"spool"`
	Pace  Pace   `json:"pace"`
}

// CopyProgress is the progress of copying documents.
type CopyProgress struct {
	Step string `json:"step"`
	// Since is when this process started or resumed the copy.
	Since time.Time `json:"since"`
	// Collections, Docs and Bytes are done; the totals are the source's
	// estimates.
	Collections      int   `json:"collections"`
	TotalCollections int   `json:"totalCollections"`
	Docs             int64 `json:"docs"`
	TotalDocs        int64 `json:"totalDocs"`
	Bytes            int64 `json:"bytes"`
	TotalBytes       int64 `json:"totalBytes"`
	// DocsPerSecond and BytesPerSecond are rates over about the last ten
	// seconds; SecondsLeft is the time left at that rate.
	DocsPerSecond  float64  `json:"docsPerSecond"`
	BytesPerSecond float64  `json:"bytesPerSecond"`
	SecondsLeft    *float64 `json:"secondsLeft"`
	// Current are the collections being copied, the largest first.
	Current      []CollectionProgress `json:"current"`
	Indexes      int                  `json:"indexes"`
	TotalIndexes int                  `json:"totalIndexes"`
	// FailedIndexes could not be built.
	FailedIndexes []FailedIndex `json:"failedIndexes"`
}

// CollectionProgress is the progress of one collection.
type CollectionProgress struct {
	Namespace       string `json:"namespace"`
	Docs            int64  `json:"docs"`
	TotalDocs       int64  `json:"totalDocs"`
	Bytes           int64  `json:"bytes"`
	TotalBytes      int64  `json:"totalBytes"`
	Ranges          int    `json:"ranges"`
	DoneRanges      int    `json:"doneRanges"`
	BuildingIndexes bool   `json:"buildingIndexes"`
}

// FailedIndex is an index that could not be built.
type FailedIndex struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Why       string `json:"why"`
}

// Spool is the part of the log that is on disk.
type Spool struct {
	Bytes      int64   `json:"bytes"`
	LimitBytes int64   `json:"limitBytes"`
	FreeBytes  int64   `json:"freeBytes"`
	Entries    int64   `json:"entries"`
	First      *OpTime `json:"first"`
	Last       *OpTime `json:"last"`
	// Full is true while there is no room and reading of the log waits; Why is
	// the reason, and the seconds say for how long.
	Full        bool     `json:"full"`
	Why         string   `json:"why,omitempty"`
	FullSeconds *float64 `json:"fullSeconds,omitempty"`
	// RelayBytes is the size of the relay log that this is, 0 if it is none. KeepsUp means that the
	// target keeps up, and that it is within that. NewestSeconds is how long ago the last entry was
	// received, nil if none was.
	RelayBytes    int64    `json:"relayBytes,omitempty"`
	KeepsUp       bool     `json:"keepsUp,omitempty"`
	NewestSeconds *float64 `json:"newestSeconds,omitempty"`
}

// Pace is the throttling of the copy.
type Pace struct {
	// LimitBytesPerSecond and LimitOpsPerSecond are set by an operator, 0 for
	// none.
	LimitBytesPerSecond int64 `json:"limitBytesPerSecond"`
	LimitOpsPerSecond   int64 `json:"limitOpsPerSecond"`
	// Factor is the share of its speed that pressure leaves to the copy, Side
	// the cluster under pressure, Why the symptom.
	Factor float64 `json:"factor"`
	Side   string  `json:"side,omitempty"`
	Why    string  `json:"why,omitempty"`
}

// addCopy adds the state of the copy, and whether the target is consistent. The
// tracker is locked.
func (t *Tracker) addCopy(s *Snapshot, p *monitor.Snapshot, now time.Time) {
	until := p.CopiedUntil
	s.Consistent = !p.Progress.Applied.IsNull() && !p.Progress.Applied.Before(until)
	if c := p.Copy; c != nil {
		// The applied optime alone is not enough: the copied member must be found
		// without a rollback.
		s.Consistent = s.Consistent && c.Phase == checkpoint.Copied
		if until.IsNull() {
			until = c.Stop
		}
		s.Copy = NewCopy(c)
	}
	s.RelayOff = p.RelayOff
	if p.Spool != nil {
		s.Spool = spoolOf(p.Spool)
		s.Spool.RelayBytes, s.Spool.KeepsUp = p.RelayBytes, p.KeepsUp
		if at := p.Spool.Newest; !at.IsZero() {
			age := seconds(max(0, now.Sub(at)))
			s.Spool.NewestSeconds = &age
		}
		if s.Spool.Full && !t.fullSince.IsZero() {
			full := seconds(now.Sub(t.fullSince))
			s.Spool.FullSeconds = &full
		}
		if s.Copy != nil {
			s.Copy.Spool = s.Spool
		}
	}
	for i := range p.LeftOut {
		out := &p.LeftOut[i]
		s.LeftOut = append(s.LeftOut, LeftOut{Namespace: string(out.NS), Since: opTime(out.Since, out.Wall), Failed: out.Failed})
	}
	s.SetLacking(&p.Lacking)
	s.Consistent = s.Consistent && len(s.LeftOut) == 0
	if s.Consistent {
		s.ConsistentAt = opTime(until, 0)
	}
}

// SetLacking sets what the target lacks of the source.
func (s *Snapshot) SetLacking(l *ddl.Lacking) {
	for i := range l.Views {
		s.LackingViews = append(s.LackingViews, LackingView{Namespace: l.Views[i].Name(), Why: l.Views[i].Why})
	}
	for i := range l.Indexes {
		s.LackingIndexes = append(s.LackingIndexes, LackingIndex{Namespace: string(l.Indexes[i].NS), Name: l.Indexes[i].Index})
	}
	for _, o := range l.Options {
		s.LackingOptions = append(s.LackingOptions, LackingOption{Namespace: string(o.NS), Name: o.Name})
	}
}

// NewCopy returns the JSON form of a copy. It does not set how long the spool has
// been full.
func NewCopy(c *monitor.Copy) *Copy {
	out := &Copy{
		Phase: string(c.Phase), Number: c.Number, VoidBefore: c.Why, Started: c.Started.UTC(), Host: c.Host,
		FetchFrom: opTime(c.FetchFrom, 0), Begin: opTime(c.Begin, 0), Stop: opTime(c.Stop, 0),
		Pace: paceOf(c.Pace),
	}
	if c.Progress != nil {
		out.Progress = progressOf(c.Progress)
	}
	if c.Spool != nil {
		out.Spool = spoolOf(c.Spool)
	}
	return out
}

func progressOf(p *initialsync.Progress) *CopyProgress {
	out := &CopyProgress{
		Step: string(p.Step), Since: p.Since.UTC(),
		Collections: p.Collections, TotalCollections: p.TotalCollections,
		Docs: p.Docs, TotalDocs: p.TotalDocs, Bytes: p.Bytes, TotalBytes: p.TotalBytes,
		DocsPerSecond: round(p.DocsPerSecond), BytesPerSecond: round(p.BytesPerSecond),
		Current: make([]CollectionProgress, 0, len(p.Current)),
		Indexes: p.Indexes, TotalIndexes: p.TotalIndexes,
		FailedIndexes: make([]FailedIndex, 0, len(p.Failed)),
	}
	if p.Left >= 0 {
		left := seconds(p.Left)
		out.SecondsLeft = &left
	}
	for i := range p.Current {
		c := &p.Current[i]
		out.Current = append(out.Current, CollectionProgress{
			Namespace: string(c.NS), Docs: c.Docs, TotalDocs: c.TotalDocs, Bytes: c.Bytes, TotalBytes: c.TotalBytes,
			Ranges: c.Ranges, DoneRanges: c.DoneRanges, BuildingIndexes: c.Indexes,
		})
	}
	for i := range p.Failed {
		f := &p.Failed[i]
		out.FailedIndexes = append(out.FailedIndexes, FailedIndex{string(f.NS), f.Name, f.Why})
	}
	return out
}

func spoolOf(d *spool.DiskStats) *Spool {
	return &Spool{
		Bytes: d.Bytes, LimitBytes: d.Limit, FreeBytes: d.Free, Entries: d.Entries,
		First: opTime(d.First, 0), Last: opTime(d.Last, 0), Full: d.Full, Why: d.Why,
	}
}

func paceOf(p pace.Status) Pace {
	return Pace{
		LimitBytesPerSecond: p.BytesPerSecond, LimitOpsPerSecond: p.OpsPerSecond,
		Factor: p.Factor, Side: string(p.Side), Why: p.Why,
	}
}

// noteSpool notes since when the spool is full. The tracker is locked.
func (t *Tracker) noteSpool(p *monitor.Snapshot, now time.Time) {
	switch {
	case p.Spool == nil || !p.Spool.Full:
		t.fullSince = time.Time{}
	case t.fullSince.IsZero():
		t.fullSince = now
	}
}

// windowFresh is how long the pipeline's knowledge of the source's oplog is
// valid.
const windowFresh = time.Minute

// knowsWindow reports whether the pipeline knows the source's oplog window, so
// that it need not be queried here.
func knowsWindow(p *monitor.Snapshot, now time.Time) bool {
	w := &p.Window
	return !w.At.IsZero() && now.Sub(w.At) <= windowFresh && w.Oldest.T != 0 && w.Position.T != 0
}

// addWindow adds the rest of the source's oplog window: that of the sync source
// if the pipeline knows it, else by the tracker's own query of the primary. The
// tracker is locked.
func (t *Tracker) addWindow(s *Snapshot, p *monitor.Snapshot, now time.Time) {
	if knowsWindow(p, now) {
		left := max(0, float64(p.Window.Position.T)-float64(p.Window.Oldest.T))
		s.OplogWindowLeftSeconds = &left
		if p.Window.Left >= 0 {
			rollover := seconds(max(0, p.Window.Left-now.Sub(p.Window.At)))
			s.OplogRolloverSeconds = &rollover
		}
		return
	}
	from := t.point.FetchFrom
	if from.IsNull() {
		from = p.Progress.FetchFrom
	}
	if !from.IsNull() && !t.asked.IsZero() && now.Sub(t.asked) <= staleAnswers*askEvery {
		left := max(0, float64(from.TS.T)-float64(t.oldest.T))
		s.OplogWindowLeftSeconds = &left
	}
}

// left says, as the end of a sentence, how much is left: the time that the documents take is no measure of the indexes.
func (p *CopyProgress) left(show func(time.Duration) string) string {
	switch step := initialsync.Step(p.Step); {
	case step == initialsync.StepIndexes:
		return fmt.Sprintf(", %d of %d indexes", p.Indexes, p.TotalIndexes)
	case step == initialsync.StepDone || p.SecondsLeft == nil:
		return ""
	}
	return ", about " + show(ofSeconds(*p.SecondsLeft)) + " left"
}

// sentence describes the copy in a line.
func (c *Copy) sentence() string {
	out := fmt.Sprintf("copy %d of %s, %s", c.Number, c.Host, c.Phase)
	if p := c.Progress; p != nil {
		out += fmt.Sprintf(": %s, %d of %d collections, %s of about %s", p.Step, p.Collections, p.TotalCollections, size(p.Bytes), size(p.TotalBytes)) +
			p.left(func(d time.Duration) string { return d.Round(time.Second).String() })
	}
	if c.Pace.Why != "" {
		out += fmt.Sprintf("; slowed down, %s: %s", c.Pace.Side, c.Pace.Why)
	}
	if c.Spool != nil && c.Spool.Full {
		out += "; the spool is full, and the oplog is not read: " + c.Spool.Why
	}
	return out + "; the target is not consistent\n"
}

// size formats a number of bytes in MiB, from 1 GiB on in GiB.
func size(n int64) string {
	if n < 1<<30 {
		return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
	}
	return strconv.FormatFloat(float64(n)/(1<<30), 'f', 1, 64) + " GiB"
}

// doubts returns, in a line each, why the target is not consistent.
func (s *Snapshot) doubts() string {
	out := ""
	switch c := s.Copy; {
	case s.Consistent:
		return ""
	case c != nil && c.Phase == string(checkpoint.Replaying) && c.Stop != nil && s.OpTimes.LogApplied != nil && s.OpTimes.LogApplied.T <= c.Stop.T:
		out = fmt.Sprintf("copy %d of %s, %s: all documents are copied, %s of the oplog must still be applied to them; the target is not consistent\n",
			c.Number, c.Host, c.Phase, time.Duration(c.Stop.T-s.OpTimes.LogApplied.T)*time.Second)
	case c != nil && c.Phase != string(checkpoint.Copied):
		out = c.sentence()
	case len(s.LeftOut) == 0:
		out = "the target is not consistent: the oplog has not been applied yet to everything that was copied\n"
	}
	return out + s.leftOutText()
}

// leftOutText returns a line for each collection that is left out.
func (s *Snapshot) leftOutText() string {
	var copied []string
	var out strings.Builder
	for i := range s.LeftOut {
		l := &s.LeftOut[i]
		if l.Failed == "" {
			copied = append(copied, l.Namespace)
			continue
		}
		_, _ = fmt.Fprintf(&out, "not consistent, and left out until it is asked for again: %s could not be copied again: %s\n", l.Namespace, l.Failed)
	}
	if len(copied) > 0 {
		out.WriteString("not consistent, as they are copied again: " + some(copied) + "\n")
	}
	return out.String()
}
