package sharetest

import (
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/oplogrep/replicator/lease/share"
)

// Run tests the contract of a board. Open returns an empty one. Taken is how old a beat may be in the
// tests until the name is free; a few calls must take less.
func Run(t *testing.T, taken time.Duration, open func(t *testing.T) share.Board) {
	for name, test := range map[string]func(*suite){
		"Fields":    (*suite).fields,
		"Names":     (*suite).names,
		"Leave":     (*suite).leave,
		"Drain":     (*suite).drain,
		"Groups":    (*suite).groups,
		"Plan":      (*suite).plan,
		"Fence":     (*suite).fence,
		"OneWins":   (*suite).oneWins,
		"Large":     (*suite).large,
		"JoinOnce":  (*suite).joinOnce,
		"Cancelled": (*suite).cancelled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&suite{T: t, taken: taken, board: open(t)})
		})
	}
}

type suite struct {
	*testing.T
	taken time.Duration
	board share.Board
}

// retried calls again after errors, which may pass.
func retried[V any](s *suite, call func() (V, error)) V {
	s.Helper()
	for {
		v, err := call()
		if err == nil {
			return v
		}
		if s.Context().Err() != nil {
			s.Fatal(err)
		}
		s.Logf("it is tried again: %v", err)
		<-time.After(10 * time.Millisecond)
	}
}

func (s *suite) beat(m share.Member) share.Member {
	s.Helper()
	return retried(s, func() (share.Member, error) { return s.board.Beat(s.Context(), "g", m, s.taken) })
}

func (s *suite) members(group string) []share.Member {
	s.Helper()
	return retried(s, func() ([]share.Member, error) {
		list, _, err := s.board.Members(s.Context(), group)
		return list, err
	})
}

func (s *suite) now() time.Time {
	s.Helper()
	return retried(s, func() (time.Time, error) {
		_, now, err := s.board.Members(s.Context(), "g")
		return now, err
	})
}

// pass waits until the store's clock has passed a time.
func (s *suite) pass(at time.Time) {
	s.Helper()
	for !s.now().After(at) {
		<-time.After(5 * time.Millisecond)
	}
}

func (s *suite) done(call func() error) {
	s.Helper()
	retried(s, func() (bool, error) { return true, call() })
}

// odd are texts that must be kept as they are.
var odd = []string{"plain", "$why", "$$NOW", "a.b.c", "a/b", `it's "q" \ ; --`, "größe ☃ 🔒", "{$add: [1, 2]}", "m", " "}

// fields: what a member says is on the board, and times are the store's.
func (s *suite) fields() {
	for i, text := range odd {
		m := share.Member{
			Name: strconv.Itoa(i) + text, Process: "p" + text, Limit: i, Leaving: i%2 == 1,
			Refuses: []share.Refusal{{Partition: text, Failures: i, Why: text}, {Partition: "b", Failures: 7, Why: "b"}},
		}
		if i == 0 {
			m.Refuses = nil
		}
		before := s.now()
		got := s.beat(m)
		after := s.now()
		if got.Beat.Before(before) || got.Beat.After(after) || got.Joined.Before(before) || got.Joined.After(got.Beat) {
			s.Errorf("between %s and %s: %+v", before, after, got)
		}
		m.Beat, m.Joined = got.Beat, got.Joined
		if !reflect.DeepEqual(got, m) {
			s.Errorf("%+v, want %+v", got, m)
		}
		if list := s.members("g"); len(list) != i+1 || !reflect.DeepEqual(list[i], m) {
			s.Errorf("%+v, want %+v", list, m)
		}
		s.pass(got.Beat)
		if again := s.beat(m); !again.Beat.After(got.Beat) || !again.Joined.Equal(got.Joined) {
			s.Errorf("%+v, and then %+v", got, again)
		}
	}
}

// names: a process keeps its name while it beats, and then another one may have it.
func (s *suite) names() {
	first := s.beat(share.Member{Name: "a", Process: "p", Limit: 3})
	for {
		now := s.beat(share.Member{Name: "a", Process: "q"})
		if now.Process == "q" {
			if age := now.Beat.Sub(first.Beat); age < s.taken || !now.Joined.Equal(now.Beat) {
				s.Errorf("after %s: %+v", age, now)
			}
			break
		}
		if !reflect.DeepEqual(now, first) {
			s.Fatalf("%+v, want %+v", now, first)
		}
		<-time.After(5 * time.Millisecond)
	}
	if now := s.beat(share.Member{Name: "a", Process: "p"}); now.Process != "q" {
		s.Errorf("%+v has the name again", now)
	}
}

// leave: a member is removed by its own process alone, and its name is free.
func (s *suite) leave() {
	s.beat(share.Member{Name: "a", Process: "p"})
	s.done(func() error { return s.board.Leave(s.Context(), "g", "a", "q") })
	s.done(func() error { return s.board.Leave(s.Context(), "g", "b", "p") })
	if list := s.members("g"); len(list) != 1 {
		s.Errorf("%+v", list)
	}
	for range 2 {
		s.done(func() error { return s.board.Leave(s.Context(), "g", "a", "p") })
		if list := s.members("g"); len(list) != 0 {
			s.Errorf("it left: %+v", list)
		}
	}
	if now := s.beat(share.Member{Name: "a", Process: "q"}); now.Process != "q" {
		s.Errorf("%+v", now)
	}
}

// drain: it outlives the member, and comes before it.
func (s *suite) drain() {
	drain := func(drained bool) {
		s.Helper()
		s.done(func() error { return s.board.SetDrain(s.Context(), "g", "a", drained) })
	}
	drain(true)
	if list := s.members("g"); len(list) != 1 || !reflect.DeepEqual(list[0], share.Member{Name: "a", Drained: true}) {
		s.Errorf("%+v", list)
	}
	if now := s.beat(share.Member{Name: "a", Process: "p"}); !now.Drained || now.Process != "p" {
		s.Errorf("%+v", now)
	}
	if now := s.beat(share.Member{Name: "a", Process: "p"}); !now.Drained {
		s.Errorf("%+v", now)
	}
	s.done(func() error { return s.board.Leave(s.Context(), "g", "a", "p") })
	if list := s.members("g"); len(list) != 1 || !reflect.DeepEqual(list[0], share.Member{Name: "a", Drained: true}) {
		s.Errorf("%+v", list)
	}
	if now := s.beat(share.Member{Name: "a", Process: "q"}); !now.Drained || now.Process != "q" {
		s.Errorf("%+v", now)
	}
	drain(false)
	if list := s.members("g"); len(list) != 1 || list[0].Drained || list[0].Process != "q" {
		s.Errorf("%+v", list)
	}
	s.done(func() error { return s.board.Leave(s.Context(), "g", "a", "q") })
	drain(true)
	drain(false)
	drain(false)
	if list := s.members("g"); len(list) != 0 {
		s.Errorf("%+v", list)
	}
}

// groups know nothing of each other.
func (s *suite) groups() {
	s.beat(share.Member{Name: "a", Process: "p"})
	for _, group := range []string{"g0", "g-", "g.b", "h", "f"} {
		if list := s.members(group); len(list) != 0 {
			s.Errorf("%s: %+v", group, list)
		}
		s.done(func() error { return s.board.SetDrain(s.Context(), group, "a", true) })
		s.propose(group, 0, &share.Plan{Version: 1, Term: 9, Assignments: []share.Assignment{}}, true)
	}
	if list := s.members("g"); len(list) != 1 || list[0].Drained {
		s.Errorf("%+v", list)
	}
	if p := s.read("", 0); p != nil {
		s.Errorf("%+v", p)
	}
}

func (s *suite) read(member string, seen int64) *share.Plan {
	s.Helper()
	return retried(s, func() (*share.Plan, error) { return s.board.Plan(s.Context(), "g", member, seen) })
}

// propose writes a plan, which must be done or not. An error may have written it.
func (s *suite) propose(group string, version int64, p *share.Plan, want bool) {
	s.Helper()
	unknown := false
	done := retried(s, func() (bool, error) {
		done, err := s.board.Propose(s.Context(), group, version, p)
		unknown = unknown || err != nil
		return done, err
	})
	if done != want && (!want || !unknown) {
		s.Errorf("a plan of term %d in place of version %d: %t", p.Term, version, done)
	}
}

func plan(version, term int64, since time.Time, members ...string) *share.Plan {
	p := &share.Plan{Version: version, Term: term, Coordinator: "c.$d", Deputies: []string{"a.b", "b"}}
	for i, m := range members {
		p.Assignments = append(p.Assignments, share.Assignment{Partition: fmt.Sprintf("p%05d", i), Member: m, Since: since, Why: "$moved: " + m})
	}
	return p
}

// plan: a written plan is read back, whole or a member's part, if it is newer than the one seen.
func (s *suite) plan() {
	if p := s.read("", 0); p != nil {
		s.Errorf("before the first: %+v", p)
	}
	first := plan(1, 1, s.now(), append([]string{"a.b", "", "b", "a.b"}, odd...)...)
	first.Assignments[1].Partition = "p00001.$x/y"
	s.propose("g", 0, first, true)
	if p := s.read("", 0); !reflect.DeepEqual(p, first) {
		s.Errorf("%+v, want %+v", p, first)
	}
	if p := s.read("", 1); p != nil {
		s.Errorf("seen: %+v", p)
	}
	mine := *first
	mine.Assignments = []share.Assignment{first.Assignments[0], first.Assignments[3]}
	mine.Assignments = append(mine.Assignments, assigned(first, "a.b")[2:]...)
	if p := s.read("a.b", 0); !reflect.DeepEqual(p, &mine) {
		s.Errorf("%+v, want %+v", p, &mine)
	}
	mine.Assignments = nil
	if p := s.read("nobody", 0); !reflect.DeepEqual(p, &mine) {
		s.Errorf("%+v, want %+v", p, &mine)
	}
	second := plan(2, 1, s.now())
	s.propose("g", 1, second, true)
	if p := s.read("b", 1); !reflect.DeepEqual(p, second) {
		s.Errorf("%+v, want %+v", p, second)
	}
}

// assigned are the assignments of a member.
func assigned(p *share.Plan, member string) (list []share.Assignment) {
	for _, a := range p.Assignments {
		if a.Member == member {
			list = append(list, a)
		}
	}
	return list
}

// fence: a plan replaces exactly the one that was seen, of the same term or an older one.
func (s *suite) fence() {
	now := s.now()
	s.propose("g", 0, plan(1, 5, now, "a"), true)
	s.propose("g", 0, plan(1, 9, now, "b"), false)
	s.propose("g", 2, plan(3, 9, now, "b"), false)
	s.propose("g", 1, plan(2, 4, now, "b"), false)
	s.propose("g", 1, plan(2, 5, now, "c"), true)
	s.propose("g", 1, plan(2, 9, now, "b"), false)
	s.propose("g", 2, plan(7, 6, now, "d"), true)
	s.propose("g", 7, plan(8, 5, now, "c"), false)
	if p := s.read("", 0); !reflect.DeepEqual(p, plan(7, 6, now, "d")) {
		s.Errorf("%+v", p)
	}
}

// oneWins: of many that write at once one does.
func (s *suite) oneWins() {
	now := s.now()
	for round := range int64(6) {
		var mu sync.Mutex
		won, failed := 0, 0
		var all sync.WaitGroup
		for i := range int64(10) {
			all.Go(func() {
				done, err := s.board.Propose(s.Context(), "g", round, plan(round+1, i+10*round, now, "m"+strconv.FormatInt(i, 10)))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failed++
				}
				if done {
					won++
				}
			})
		}
		all.Wait()
		if won > 1 || won == 0 && failed == 0 {
			s.Errorf("round %d: %d wrote it, %d failed", round, won, failed)
		}
		if p := s.read("", round); p == nil || p.Version != round+1 {
			if failed == 0 {
				s.Fatalf("round %d: %+v", round, p)
			}
			s.propose("g", round, plan(round+1, 10*round+9, now), true)
		}
	}
}

// large: as many partitions as a group can have.
func (s *suite) large() {
	var members []string
	for i := range share.MaxPartitions {
		members = append(members, "member-"+strconv.Itoa(i%500))
	}
	p := plan(1, 1, s.now(), members...)
	s.propose("g", 0, p, true)
	if got := s.read("", 0); !reflect.DeepEqual(got, p) {
		s.Errorf("%d assignments of version %d", len(got.Assignments), got.Version)
	}
	if got := s.read("member-7", 0); len(got.Assignments) != share.MaxPartitions/500 {
		s.Errorf("%d are one member's", len(got.Assignments))
	}
}

// joinOnce: of many processes that want a name at once one gets it.
func (s *suite) joinOnce() {
	var mu sync.Mutex
	has := map[string]bool{}
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			now := retried(s, func() (share.Member, error) {
				return s.board.Beat(s.Context(), "g", share.Member{Name: "a", Process: "p" + strconv.Itoa(i)}, time.Hour)
			})
			mu.Lock()
			defer mu.Unlock()
			has[now.Process] = true
		})
	}
	all.Wait()
	if len(has) != 1 {
		s.Errorf("%v", has)
	}
}

// cancelled: every call returns when its context is done.
func (s *suite) cancelled() {
	ctx := cancelledContext(s.T)
	_, beat := s.board.Beat(ctx, "g", share.Member{Name: "a", Process: "p"}, s.taken)
	_, _, members := s.board.Members(ctx, "g")
	_, read := s.board.Plan(ctx, "g", "", 0)
	_, propose := s.board.Propose(ctx, "g", 0, plan(1, 1, time.UnixMilli(0).UTC()))
	for i, err := range []error{beat, members, read, propose, s.board.Leave(ctx, "g", "a", "p"), s.board.SetDrain(ctx, "g", "a", true)} {
		if err == nil {
			s.Errorf("call %d succeeded", i)
		}
	}
}
