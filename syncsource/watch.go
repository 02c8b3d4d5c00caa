package syncsource

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// watch is the state of a Watcher's Run. Only Run's goroutine accesses it.
type watch struct {
	w    *Watcher
	seen map[string]*seen
	// setName and replicaSetID are the set's, once known.
	setName      string
	replicaSetID bson.RawValue
	// listed are the hosts that hello reported; term and version are those of the
	// newest configuration reported.
	listed        []string
	term, version int64
	horizon       string
	answers       int
	// told is the last hello with the newest configuration, nil before the first.
	told *hello
	// settleBy is when a choice stops waiting for members that have not answered;
	// zero until a readable one has answered.
	settleBy time.Time

	config       *setConfig
	configFault  string
	configRetry  bool // the configuration may be readable soon
	configPasses bool // configFault is one that passes by itself
	configAsking bool
	configAsked  time.Time

	primary string
}

// seen is the observed state of a host.
type seen struct {
	asked bool
	fault string
	hello *hello // the last one, nil before the first
	// itself is set once the host answered as a member of this name.
	itself bool
	ping   time.Duration
	pings  int
	clock  Clock
}

func newWatch(w *Watcher) *watch {
	return &watch{
		w: w, seen: map[string]*seen{}, term: oplog.UninitializedTerm,
	}
}

func (s *watch) at(host string) *seen {
	if s.seen[host] == nil {
		s.seen[host] = &seen{}
	}
	return s.seen[host]
}

func (s *watch) forget(host string) {
	delete(s.seen, host)
	s.w.metrics.ping.DeleteLabelValues(host)
	s.w.metrics.up.DeleteLabelValues(host)
}

// members returns the set's members in the order of its configuration, with their
// settings; before any is known, the seeds.
func (s *watch) members() []Member {
	var members []Member
	if s.config != nil && !s.w.cfg.Direct {
		members = s.config.in(s.horizon)
		s.withoutVotes(members)
	}
	add := func(host string) {
		same := func(m Member) bool { return strings.EqualFold(m.Host, host) }
		if !slices.ContainsFunc(members, same) {
			members = append(members, s.unlisted(host))
		}
	}
	if !s.w.cfg.Direct && (s.config == nil || newer(s.term, s.version, s.config.term, s.config.version)) {
		for _, host := range s.listed {
			add(host)
		}
	}
	for _, host := range s.w.cfg.Seeds {
		// hello does not list hidden members, but a hidden member knows its own name.
		own := s.seen[host]
		itself := own != nil && own.itself
		if s.w.cfg.Direct || len(s.listed) == 0 && s.config == nil || s.config == nil && itself {
			add(host)
		}
	}
	return members
}

// withoutVotes marks members that have no vote although the configuration that was read says so. Since 5.0, a server that is added with a vote
// has neither that nor its priority before it has made its first sync (newlyAdded). replSetGetConfig tells both as they
// will be then, hello the priority as it is. So one that is added with priority 0 is not recognized, and counts: see
// initialsync, which asks a member how many have a vote.
func (s *watch) withoutVotes(members []Member) {
	if s.votesUnsure() {
		return
	}
	h := s.told
	for i := range members {
		m := &members[i]
		isPassive := slices.ContainsFunc(h.passives, func(name string) bool { return strings.EqualFold(name, m.Host) })
		m.NonVoting = m.NonVoting || isPassive && m.Priority > 0
	}
}

// votesUnsure reports whether no member has answered hello with the configuration that was read.
func (s *watch) votesUnsure() bool {
	h, c := s.told, s.config
	return h == nil || c == nil || newer(h.configTerm, h.configVersion, c.term, c.version) || newer(c.term, c.version, h.configTerm, h.configVersion)
}

// unlisted returns a member that is in no list under this name, with the settings
// that it reports itself.
func (s *watch) unlisted(host string) Member {
	m := Member{ID: -1, Priority: 1, State: oplog.MemberUnknown, Term: oplog.UninitializedTerm, RBID: -1}
	if own := s.seen[host]; own != nil && own.hello != nil {
		m = own.hello.member
		if s.config != nil {
			for _, known := range s.config.in("") {
				if strings.EqualFold(known.Host, own.hello.me) {
					m = known
				}
			}
		}
	}
	m.Host = host
	return m
}

// hosts returns the hosts to ask: the members and, while none of them answers, the
// seeds.
func (s *watch) hosts() map[string]bool {
	hosts := map[string]bool{}
	up := false
	for _, m := range s.members() {
		hosts[m.Host] = true
		own := s.seen[m.Host]
		up = up || own != nil && own.asked && own.fault == ""
	}
	if !up {
		for _, host := range s.w.cfg.Seeds {
			hosts[host] = true
		}
	}
	return hosts
}

// heard records an answer.
func (s *watch) heard(a answer) {
	own := s.at(a.host)
	before, first := own.fault, !own.asked
	own.asked = true
	if a.err != nil {
		own.fault = faultOf(a.err)
	} else {
		own.fault = s.judge(a.host, a.hello)
		own.hello = a.hello
		if a.timed {
			// The average is the server's: a new sample has a weight of one fifth.
			if own.pings++; own.pings == 1 {
				own.ping = a.ping
			} else {
				own.ping = (4*own.ping + a.ping) / 5
			}
			s.w.metrics.ping.WithLabelValues(a.host).Set(own.ping.Seconds())
			if at := a.hello.localTime; !at.IsZero() {
				own.clock = own.clock.better(measureClock(at, a.at.Add(-a.ping), a.ping))
			}
		}
	}
	if own.fault == "" {
		own.itself = own.itself || strings.EqualFold(a.hello.me, a.host)
		s.learn(a.hello)
		s.answers++
		if s.settleBy.IsZero() && a.hello.member.State.Readable() {
			s.settleBy = a.at.Add(settleTime)
		}
		s.w.metrics.up.WithLabelValues(a.host).Set(1)
		if first || before != "" {
			s.w.cfg.Observer.Log(slog.LevelInfo, "member up", slog.String(keyHost, a.host))
		}
		return
	}
	s.w.metrics.up.WithLabelValues(a.host).Set(0)
	if before == "" {
		s.w.cfg.Observer.Log(slog.LevelWarn, "member unusable", slog.String(keyHost, a.host), slog.String(keyReason, own.fault))
	}
}

// judge returns why a host that answered is not a member of the set, empty if it
// is.
func (s *watch) judge(host string, h *hello) string {
	known := s.listed
	if s.config != nil {
		known = nil
		for _, m := range s.config.in(s.horizon) {
			known = append(known, m.Host)
		}
	}
	isListed := slices.ContainsFunc(known, func(name string) bool { return strings.EqualFold(name, host) })
	switch {
	case h.fault != "":
		return h.fault
	case s.setName != "" && h.setName != s.setName:
		return fmt.Sprintf("is a member of the set %q, not of %q", h.setName, s.setName)
	case s.replicaSetID.Type != 0 && h.replicaSetID.Type != 0 && !s.replicaSetID.Equal(h.replicaSetID):
		return fmt.Sprintf("is a member of another set of the name %q: its id is %s, not %s", h.setName, h.replicaSetID, s.replicaSetID)
	case isListed && !s.w.cfg.Direct && h.me != "" && !strings.EqualFold(h.me, host):
		return "is the address of another member: " + h.me
	}
	return ""
}

// learn records a member's report on its set.
func (s *watch) learn(h *hello) {
	s.setName = h.setName
	if s.replicaSetID.Type == 0 {
		s.replicaSetID = h.replicaSetID
	}
	if s.config != nil {
		s.horizon = s.config.horizon(h.me)
	}
	if s.told == nil || !newer(s.told.configTerm, s.told.configVersion, h.configTerm, h.configVersion) {
		s.told = h
	}
	if s.listed == nil || newer(h.configTerm, h.configVersion, s.term, s.version) {
		s.listed = h.hosts
		s.reached(h.configTerm, h.configVersion)
	}
}

// settleTime is how long a choice waits for the other members once one has
// answered.
const settleTime = time.Second

// settled reports whether a choice need not wait any longer: every member has
// answered twice, so that its ping is known, or has a fault; or settleBy has
// passed.
func (s *watch) settled(members []Member, now time.Time) bool {
	if s.settleBy.IsZero() {
		return false
	}
	if !now.Before(s.settleBy) {
		return true
	}
	for i := range members {
		if m := &members[i]; !m.Stranger && (!m.Asked || m.Fault == "" && m.Pings == 0) {
			return false
		}
	}
	return true
}

// reached records the newest configuration. With a change, answers are counted from
// 0.
func (s *watch) reached(term, version int64) {
	if term != s.term || version != s.version {
		s.answers, s.settleBy = 0, time.Time{}
	}
	s.term, s.version = term, version
}

// configDue returns the host to ask for the configuration now, empty for none. It
// assumes that the caller asks it.
func (s *watch) configDue(now time.Time) string {
	since := now.Sub(s.configAsked)
	missing := s.config == nil && s.configFault == "" ||
		s.config != nil && newer(s.term, s.version, s.config.term, s.config.version)
	switch {
	case s.configAsking:
		return ""
	case s.configAsked.IsZero():
	case since >= s.w.cfg.configInterval:
	case since >= s.w.cfg.HeartbeatInterval && (missing && s.configFault == "" || s.configRetry):
	default:
		return ""
	}
	host := ""
	for name, own := range s.seen {
		if !own.asked || own.fault != "" || own.hello.member.Arbiter {
			continue
		}
		if own.hello.member.State == oplog.MemberPrimary || host == "" || s.seen[host].hello.member.State != oplog.MemberPrimary && name < host {
			host = name
		}
	}
	if host != "" {
		s.configAsking, s.configAsked = true, now
	}
	return host
}

// configured records a configuration, or the error of reading it.
func (s *watch) configured(a configAnswer) {
	s.configAsking, s.configRetry, s.configPasses = false, false, false
	fault := ""
	switch {
	case a.err != nil:
		fault = a.err.Error()
		s.configRetry = !servererr.IsDenied(a.err)
		s.configPasses = a.silent || servererr.Classify(a.err).Passes()
	case s.setName != "" && a.config.name != s.setName:
		fault = fmt.Sprintf("%s has the configuration of the set %q, not of %q", a.host, a.config.name, s.setName)
		s.configRetry = true
	default:
		if s.config == nil || !newer(s.config.term, s.config.version, a.config.term, a.config.version) {
			s.config = a.config
			if s.replicaSetID.Type == 0 {
				s.replicaSetID = a.config.replicaSetID
			}
			if own := s.seen[a.host]; own != nil && own.hello != nil {
				s.horizon = s.config.horizon(own.hello.me)
			}
			if newer(s.config.term, s.config.version, s.term, s.version) {
				s.reached(s.config.term, s.config.version)
			}
		}
	}
	if fault != "" && fault != s.configFault {
		s.w.cfg.Observer.Log(slog.LevelWarn, "the source's configuration cannot be read", slog.String(keyReason, fault))
	}
	s.configFault = fault
}

// configUnread reports whether the newest configuration was not read, and can be expected to be. One that no
// member reports any more, as that of a primary that was cut off, is not waited for.
func (s *watch) configUnread() bool {
	if s.w.cfg.Direct || s.configFault != "" && !s.configPasses {
		return false
	}
	unread := s.config == nil
	for _, own := range s.seen {
		unread = unread || own.hello != nil && own.fault == "" &&
			newer(own.hello.configTerm, own.hello.configVersion, s.config.term, s.config.version)
	}
	return unread
}

// look builds the View.
func (s *watch) look() View {
	v := View{
		SetName: s.setName, ReplicaSetID: s.replicaSetID, ConfigVersion: s.version,
		ConfigFault: s.configFault, Answers: s.answers, Members: s.members(),
		ConfigTerm: s.term, ConfigUnread: s.configUnread(), VotesUnsure: s.votesUnsure(),
	}
	if s.config != nil {
		v.NoChaining = s.config.noChaining
	}
	for _, host := range s.w.cfg.Seeds {
		if own := s.seen[host]; own == nil {
			continue
		}
		if _, known := v.find(host); !known {
			m := s.unlisted(host)
			m.Stranger = true
			v.Members = append(v.Members, m)
		}
	}
	for i := range v.Members {
		s.fill(&v.Members[i])
	}
	v.Settled = s.settled(v.Members, time.Now())
	primary, term := "", oplog.UninitializedTerm
	if m, ok := v.primary(); ok {
		primary, term = m.Host, m.Term
	}
	if primary != s.primary {
		attrs := []slog.Attr{slog.String(keyFrom, s.primary), slog.String(keyTo, primary)}
		if primary != "" && term != oplog.UninitializedTerm {
			attrs = append(attrs, slog.Int64(keyTerm, term))
		}
		s.w.cfg.Observer.Log(slog.LevelInfo, "primary of the source changed", attrs...)
		s.primary = primary
	}
	return v
}

// fill adds the observed state of a member to its configured one.
func (s *watch) fill(m *Member) {
	own := s.seen[m.Host]
	if own == nil {
		return
	}
	m.Asked, m.Fault = own.asked, own.fault
	m.Ping, m.Pings, m.Clock = own.ping, own.pings, own.clock
	if own.hello != nil {
		said := &own.hello.member
		m.State, m.Term, m.Applied, m.Committed = said.State, said.Term, said.Applied, said.Committed
		m.RBID, m.Source = said.RBID, said.Source
	}
	if m.Fault != "" {
		m.State = oplog.MemberDown
	}
}

// settling returns a channel that receives when settleBy has passed, nil if there
// is nothing to wait for.
func (s *watch) settling(v *View) <-chan time.Time {
	if v.Settled || s.settleBy.IsZero() {
		return nil
	}
	return time.After(time.Until(s.settleBy))
}
