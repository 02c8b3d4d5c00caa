package status

import (
	"fmt"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/lease"
)

// Stored is the state of a link in the metadata.
type Stored struct {
	Link  string
	State checkpoint.State
	// Lease is the link's lease.
	Lease lease.Sighting
	// Cutover is the one that is under way, nil if none is.
	Cutover *Cutover
	// Guard has the foreign writes that are known and open, nil if it was not read.
	Guard *guard.State
	// Diverged are the collections that have diverged, unless a comparison has found no difference since.
	Diverged []checkpoint.Diverged
	// Deferred is how many indexes and collections of a link that was promoted do not have all options of the source: the promotion was
	// interrupted, or documents violate a unique index. 0 for other links.
	Deferred int
	// At is the time of this process's clock.
	At time.Time
}

const (
	// storedFresh is how old the position of a link may be that is run: an idle source has an
	// entry every ten seconds, and the position is recorded every few.
	storedFresh = 30 * time.Second
	keyStored   = "stored"
	// keyInterrupted is a row of the table of conditions.
	keyInterrupted = "cutover-interrupted"
)

// Rows of the table of conditions.
const (
	keyDiverged = "diverged"
	keyForeign  = "foreign-writes"
)

// Verdict judges a link by its metadata, where the process that runs it cannot be asked. It
// is never good news of now: it says what the target had when the position was last recorded.
func (s *Stored) Verdict() Verdict {
	v := s.ofLink()
	s.foreign(&v)
	s.diverged(&v)
	c := s.Cutover
	switch {
	case c == nil:
	case !c.Interrupted:
		v.Also = append([]string{c.String()}, v.Also...)
	default:
		// Nothing but the record says that the source is blocked, or that nothing may be applied.
		if v.Level != Broken {
			v.Level = Attention
		}
		v.Also = append([]string{v.Sentence}, v.Also...)
		v.Name, v.Sentence, v.Since = keyInterrupted, c.String(), c.Since
		v.Next = c.next(func(flag string) string { return "replicator cutover --link " + s.Link + " " + flag + " …" })
	}
	return v
}

// foreign adds the foreign writes that are open: a link that has some is not good.
func (s *Stored) foreign(v *Verdict) {
	if s.State.Over != nil || s.Guard == nil || !s.Guard.IsTouched() {
		return
	}
	since := v.Since
	for i := range s.Guard.Touched {
		if at := s.Guard.Touched[i].First; i == 0 || at.Before(since) {
			since = at
		}
	}
	s.attend(v, keyForeign, "Something else has written to "+openNamespaces(s.Guard)+", and that was not dealt with: replicator guard --link "+s.Link+
		" … has the writes. With --guard=stop the link does not start before.", since, "replicator guard --link "+s.Link+" …")
}

// diverged adds the collections that have diverged: a link that has some is not good.
func (s *Stored) diverged(v *Verdict) {
	of := Snapshot{Link: s.Link, Diverged: NewDiverged(s.Diverged)}
	if sentence, since := diverges(&of); sentence != "" {
		s.attend(v, keyDiverged, sentence, since, dealWithDiverged(&of))
	}
}

// attend makes what needs attention the verdict of a link that is good otherwise, and adds it to that of any other.
func (s *Stored) attend(v *Verdict, name, sentence string, since time.Time, next string) {
	if v.Level == Good && s.State.Over == nil {
		v.Also = append([]string{v.Sentence}, v.Also...)
		v.Name, v.Level, v.Sentence, v.Since, v.Next = name, Attention, sentence, since, next
		return
	}
	v.Also = append(v.Also, sentence)
	if v.Level == Good || v.Level == Working {
		v.Level = Attention
	}
}

// ofLink is the verdict without a cutover that is under way.
func (s *Stored) ofLink() Verdict {
	v := Verdict{Name: keyStored, Level: Working, Since: s.at(), Also: []string{}}
	if o := s.State.Over; o != nil {
		v.Level, v.Since = Good, o.At
		if o.Promoted != nil {
			return s.promoted(v)
		}
		uses := "applications use the target, and nothing of the source is applied any more."
		if s.Cutover != nil && s.Cutover.TargetBlocked {
			v.Level, uses = Working, "nothing of the source is applied any more. "+record.TargetBlocked
		}
		v.Sentence = fmt.Sprintf("Cut over at %s UTC by %s: %s", o.At.UTC().Format("2006-01-02 15:04:05"), o.By, uses)
		return v
	}
	reached := s.State.Reached()
	age := s.At.Sub(time.UnixMilli(reached.AppliedWall))
	switch has := "the target has everything up to " + s.at().Format("2006-01-02 15:04:05") + " UTC, " + coarse(max(0, age)) + " ago"; {
	case reached.Applied.IsNull():
		v.Sentence = "The target is not consistent yet"
	case age <= storedFresh && s.leader() != "":
		v.Level, v.Sentence = Good, "As of the metadata, "+has
	default:
		v.Level, v.Sentence = Unknown, "As of the metadata, "+has
	}
	switch leader := s.leader(); {
	case s.State.Converting != nil, leader != "" && s.Lease.Record.Grant.Why == lease.ForCutover:
		v.Level = Working
		if s.Cutover == nil || s.Cutover.Interrupted { // it is not over by itself
			v.Level = Broken
		}
		v.Sentence += "; nothing is applied while the cutover is between convert and its end: processes of the link stand by."
	case leader != "":
		v.Sentence += "; " + leader + " runs the link."
	case s.Lease.Record.Grant.ID.IsZero() && s.Lease.Record.Holder != "":
		v.Level = Unknown
		v.Sentence += "; its process does not renew a lease, so that it is not known whether it runs."
	default:
		v.Level, v.Sentence = Broken, "No process runs the link. "+v.Sentence+"."
		v.Next = "replicator run --link " + s.Link + " …"
	}
	for _, out := range s.State.LeftOut {
		if out.Failed == "" {
			v.Also = append(v.Also, "Copying again: "+string(out.NS)+". The target is not consistent in it meanwhile.")
			continue
		}
		v.Level = Broken
		v.Also = append(v.Also, fmt.Sprintf("Not consistent: %s could not be copied again: %s.", out.NS, out.Failed))
		if v.Next == "" {
			v.Next = "replicator resync --link " + s.Link + " --namespace " + string(out.NS) + " …"
		}
	}
	return v
}

// promoted is the verdict of a link whose target was promoted.
func (s *Stored) promoted(v Verdict) Verdict {
	o := s.State.Over
	v.Sentence = fmt.Sprintf("Promoted at %s UTC by %s, as its source was lost: applications use the target, and nothing of the source is applied any more.", o.At.UTC().Format("2006-01-02 15:04:05"), o.By)
	if !o.Promoted.Exact {
		v.Level = Attention
		v.Also = append(v.Also, "The target is not exact as of one time of the source: replicator promote --link "+s.Link+" … prints its recovery point.")
	}
	if s.Deferred > 0 {
		v.Level = Attention
		v.Next = "replicator promote --link " + s.Link + " …"
		v.Also = append(v.Also, fmt.Sprintf("Not restored: options of %d indexes and collections, such as uniqueness. Applications use the target without them. "+
			"Run the promotion again: it restores them, or says what keeps it.", s.Deferred))
	}
	return v
}

// Lag is the age of the target's newest entry, nil while it is not consistent. The clocks of the
// source and of this process are compared.
func (s *Stored) Lag() *float64 {
	reached := s.State.Reached()
	if reached.Applied.IsNull() || s.State.Over != nil {
		return nil
	}
	lag := seconds(max(0, s.At.Sub(time.UnixMilli(reached.AppliedWall))))
	return &lag
}

func (s *Stored) at() time.Time {
	reached := s.State.Reached()
	return time.UnixMilli(reached.AppliedWall).UTC()
}

// leader is the process that has the lease, empty if none has.
func (s *Stored) leader() string {
	if s.Lease.Free || s.Lease.Record.Grant.ID.IsZero() || s.Lease.Record.Grant.Released {
		return ""
	}
	return s.Lease.Record.Holder
}
