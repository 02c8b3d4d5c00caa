package txn

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// event is an entry of a random log, with its expected meaning.
type event struct {
	line
	ops         []string // as expected when read back
	chain       int      // 0 for none
	disposition Outcome  // of the entry by itself
	ends        []int    // chains that it ends
	drops       int
}

// history generates a random log. It knows the meaning of its entries; an Assembler
// has to determine it.
type history struct {
	t        *rapid.T
	events   []event
	now      int
	last     int // id of the last operation
	chains   int
	sessions int64 // number of the last transaction of any session
	open     []*openChain
}

type openChain struct {
	id       int
	session  byte // 0 for none
	number   int64
	last     int // timestamp of its last part
	parts    int
	count    int
	prepared bool
}

func (h *history) chance(percent int) bool {
	return rapid.IntRange(1, 100).Draw(h.t, "chance") <= percent
}

func (h *history) emit(e event) {
	h.now += rapid.IntRange(1, 3).Draw(h.t, "gap")
	e.at = h.now
	h.events = append(h.events, e)
}

// newOps returns some operations with unique ids.
func (h *history) newOps(letters string) []string {
	var all []string
	for range rapid.IntRange(0, 4).Draw(h.t, "operations") {
		h.last++
		letter := letters[rapid.IntRange(0, len(letters)-1).Draw(h.t, "kind")]
		all = append(all, string(letter)+strconv.Itoa(h.last))
	}
	return all
}

func upserting(all []string) []string {
	var as []string
	for _, op := range all {
		if op[0] == 'u' {
			op += "+"
		}
		as = append(as, op)
	}
	return as
}

// session returns a session that no open chain has, and a number that is its
// highest.
func (h *history) session() (byte, int64) {
	h.sessions++
	var free []byte
	for s := byte(1); len(free) < 3; s++ {
		if !slices.ContainsFunc(h.open, func(c *openChain) bool { return c.session == s }) {
			free = append(free, s)
		}
	}
	return rapid.SampledFrom(free).Draw(h.t, "session"), h.sessions
}

func (h *history) single() {
	s, number := h.session()
	switch rapid.IntRange(0, 6).Draw(h.t, "single") {
	case 0:
		h.last++
		h.emit(event{line: line{prev: none, op: fmt.Sprint("i", h.last)}, disposition: Pass})
	case 1: // a retryable write, linked to whatever is before it
		h.last++
		h.emit(event{line: line{prev: h.now, session: s, number: number, op: fmt.Sprint("u", h.last)}, disposition: Pass})
	case 2:
		all := h.newOps("iudcn")
		h.emit(event{line: line{prev: none, cmd: list(all)}, ops: upserting(all), disposition: Committed})
	case 3: // nested
		a, b := h.newOps("iud"), h.newOps("iud")
		elements := []bsoncore.Document{nested(list(a))}
		for _, op := range b {
			elements = append(elements, element(op))
		}
		h.emit(event{line: line{prev: none, cmd: listOf(elements)}, ops: append(upserting(a), upserting(b)...), disposition: Committed})
	case 4: // retryable writes in a group
		all := h.newOps("iud")
		h.emit(event{line: line{prev: h.now, session: s, number: number, multi: 1, cmd: list(all)}, ops: all, disposition: Committed})
	case 5:
		all := h.newOps("iudc")
		h.emit(event{line: line{prev: null, session: s, number: number, cmd: list(all)}, ops: all, disposition: Committed})
	case 6:
		h.emit(event{line: line{prev: null, session: s, number: number, cmd: abortCmd}, disposition: Aborted})
	}
}

func (h *history) close(i int) { h.open = append(h.open[:i:i], h.open[i+1:]...) }

func (h *history) part(c *openChain, final bool, more ...func(*bsoncore.DocumentBuilder)) event {
	all := h.newOps("iudc")
	c.count += len(all)
	if final && (c.parts > 0 || h.chance(50)) { // one entry needs none
		more = append(more, count(int64(c.count)))
	}
	e := event{
		line: line{prev: c.last, session: c.session, number: c.number, cmd: list(all, more...)},
		ops:  all, chain: c.id, disposition: Partial,
	}
	if c.session == 0 {
		e.ops = upserting(all)
	}
	c.parts++
	return e
}

func (h *history) begin() {
	h.chains++
	c := &openChain{id: h.chains, last: null}
	if h.chance(75) {
		c.session, c.number = h.session()
	}
	if c.prepared = c.session != 0 && h.chance(30); c.prepared {
		h.emit(h.part(c, true, prepare))
	} else {
		h.emit(h.part(c, false, partial))
	}
	c.last = h.now
	h.open = append(h.open, c)
}

func (h *history) proceed() {
	i := rapid.IntRange(0, len(h.open)-1).Draw(h.t, "chain")
	c := h.open[i]
	abort := c.session != 0 && h.chance(25)
	switch {
	case abort:
		h.emit(event{line: part(0, c.last, c.session, c.number, abortCmd), chain: c.id, disposition: Aborted, ends: []int{c.id}})
		h.close(i)
	case c.prepared:
		h.emit(event{
			line:  part(0, c.last, c.session, c.number, commitAt(rapid.IntRange(c.last, h.now).Draw(h.t, "commit timestamp"))),
			chain: c.id, disposition: Committed, ends: []int{c.id},
		})
		h.close(i)
	case h.chance(50):
		h.emit(h.part(c, false, partial))
		c.last = h.now
	case c.session != 0 && h.chance(40):
		h.emit(h.part(c, true, prepare))
		c.last, c.prepared = h.now, true
	default:
		e := h.part(c, true)
		e.disposition, e.ends = Committed, []int{c.id}
		h.emit(e)
		h.close(i)
	}
}

// moveOn writes a newer transaction in the session of an open chain.
func (h *history) moveOn() {
	i := rapid.IntRange(0, len(h.open)-1).Draw(h.t, "chain")
	c := h.open[i]
	if c.session == 0 {
		return
	}
	h.sessions++
	h.last++
	e := event{line: line{prev: null, session: c.session, number: h.sessions, op: fmt.Sprint("d", h.last)}, disposition: Pass}
	if !c.prepared {
		e.ends, e.drops = []int{c.id}, 1
		h.close(i)
	}
	h.emit(e)
}

func randomHistory(t *rapid.T) []event {
	h := &history{t: t, now: 1}
	for range rapid.IntRange(1, 60).Draw(t, "entries") {
		switch n := rapid.IntRange(0, 9).Draw(t, "what"); {
		case n < 3 || len(h.open) == 0 && n > 5:
			h.single()
		case n < 6:
			h.begin()
		case n < 9:
			h.proceed()
		default:
			h.moveOn()
		}
	}
	return h.events
}

// truth returns the expected result for entry i by scanning the whole log.
func truth(log []event, i int) string {
	e := log[i]
	s := e.disposition.String()
	switch e.disposition {
	case Committed:
		kind := KindApplyOps
		if e.session != 0 && e.multi == 0 {
			kind = KindTransaction
		}
		all := e.ops
		if e.chain != 0 {
			all = nil
			for _, f := range log[:i+1] {
				if f.chain == e.chain {
					all = append(all, f.ops...)
				}
			}
		}
		s = strings.Join(append([]string{s, kind.String()}, all...), " ")
	case Aborted:
		parts := 0
		for _, f := range log[:i] {
			if e.chain != 0 && f.chain == e.chain {
				parts++
			}
		}
		s += fmt.Sprintf(" %d parts", parts)
	default:
	}
	if e.drops > 0 {
		s += fmt.Sprintf(", dropped %d", e.drops)
	}
	return s
}

// oldest returns the start of the oldest chain that is open after entry i, 0 for
// none.
func oldest(log []event, i int) int {
	for _, start := range log[:i+1] {
		if start.chain == 0 {
			continue
		}
		ended := false
		for _, f := range log[:i+1] {
			for _, c := range f.ends {
				ended = ended || c == start.chain
			}
		}
		if !ended {
			return start.at
		}
	}
	return 0
}

// Any interleaving of transactions is assembled correctly, with any budget, and
// again from any checkpoint.
func TestAssemblerModel(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		log := randomHistory(rt)
		budget := rapid.SampledFrom([]int64{1, 300, 1000, 0}).Draw(rt, "memory")
		a, err := New(Config{MemoryBytes: budget, SpillDir: dir})
		if err != nil {
			rt.Fatal(err)
		}
		fetchFrom := run(rt, t, a, log, 0, -1)

		// A checkpoint belongs to an entry; a run from there returns the remaining
		// results.
		p := rapid.IntRange(0, len(log)-1).Draw(rt, "checkpoint")
		from := slices.IndexFunc(log, func(e event) bool { return optime(e.at) == fetchFrom[p] })
		again, err := New(Config{MemoryBytes: budget, SpillDir: dir, ApplyAfter: optime(log[p].at)})
		if err != nil {
			rt.Fatal(err)
		}
		run(rt, t, again, log, from, p)

		// Without the checkpoint's entry, resuming from it fails.
		gone := slices.Delete(slices.Clone(log), p, p+1)
		if p == len(gone) {
			return
		}
		cut, err := New(Config{MemoryBytes: budget, SpillDir: dir, ApplyAfter: optime(log[p].at)})
		if err != nil {
			rt.Fatal(err)
		}
		for i := min(from, p); i <= p; i++ {
			r, err := add(t, cut, gone[i].line)
			f, ok := errors.AsType[*ResumeError](err)
			if i < p && (err != nil || r.Outcome != Past) || i == p && (!ok || f.Want != optime(log[p].at) || f.Got != optime(gone[p].at)) {
				rt.Fatalf("entry %d without entry %d: %s, %v", gone[i].at, log[p].at, r.Outcome, err)
			}
		}
		must.Succeed(rt, cut.Close())
	})
}

// run adds the log from an entry on. Up to applied every outcome is Past. It
// returns FetchFrom for each entry.
func run(rt *rapid.T, t *testing.T, a *Assembler, log []event, from, applied int) []oplog.OpTime {
	rt.Helper()
	fetchFrom := make([]oplog.OpTime, len(log))
	var held []*Transaction
	for i := from; i < len(log); i++ {
		r, err := add(t, a, log[i].line)
		if err != nil {
			rt.Fatalf("entry %d: %v", log[i].at, err)
		}
		want := truth(log, i)
		if i <= applied {
			want = Past.String()
			r.Parts, r.Dropped = 0, 0
		}
		if diff := cmp.Diff(want, tell(t, r)); diff != "" {
			rt.Fatalf("entry %d (-want +got):\n%s", log[i].at, diff)
		}
		if r.Txn != nil {
			held = append(held, r.Txn)
			checkTransaction(rt, r.Txn, log, i)
		}
		if len(held) > 2 { // as a pipeline does, later and in order
			must.Succeed(rt, held[0].Close())
			held = held[1:]
		}
		at, ok := a.OldestOpen()
		// Chains from before the first entry are followed, but do not count as open.
		start := oldest(log, i)
		if i >= applied && (ok != (start != 0) || ok && at != optime(start)) {
			rt.Fatalf("after entry %d the oldest open chain began at %s, %v, want %d", log[i].at, at, ok, start)
		}
		var again oplog.OpTime
		switch {
		case i < applied:
		case start != 0:
			again = optime(start)
		default:
			again = optime(log[i].at)
		}
		fetchFrom[i] = r.FetchFrom
		if r.FetchFrom != again {
			rt.Fatalf("after entry %d reading begins again at %s, want %s", log[i].at, r.FetchFrom, again)
		}
		checkMemory(rt, a, log[i].at)
	}
	for _, txn := range held {
		must.Succeed(rt, txn.Close())
	}
	closeEmpty(rt, a)
	return fetchFrom
}

// closeEmpty closes an Assembler and checks that nothing is left in it.
func closeEmpty(rt *rapid.T, a *Assembler) {
	rt.Helper()
	if open := a.Open(); len(a.byLast) != len(open) {
		rt.Fatalf("%d links for %d open chains", len(a.byLast), len(open))
	}
	must.Succeed(rt, a.Close())
	if a.Bytes() != 0 || len(a.sessions) != 0 || len(a.byLast) != 0 || len(a.inMemory) != 0 || a.segments.current != nil {
		rt.Fatalf("left behind: %d bytes, %d sessions, %d links, %d chains in memory, file %v",
			a.Bytes(), len(a.sessions), len(a.byLast), len(a.inMemory), a.segments.current)
	}
}

// checkMemory checks the memory that an Assembler uses after an entry.
func checkMemory(rt *rapid.T, a *Assembler, at int) {
	rt.Helper()
	inMemory := 0
	for c := a.oldest; c != nil; c = c.newer {
		if c.store.memBytes > 0 {
			inMemory++
		}
		if c.store.memBytes > 0 != (c.place != nowhere) || c.place > 0 && a.inMemory.Less(c.place, (c.place-1)/2) {
			rt.Fatalf("after entry %d the chain of %s with %d bytes in memory is at %d", at, c.start, c.store.memBytes, c.place)
		}
	}
	if inMemory != len(a.inMemory) {
		rt.Fatalf("after entry %d %d chains have parts in memory, not %d", at, inMemory, len(a.inMemory))
	}
	if used := a.Bytes(); used > a.budget.limit || used < 0 {
		rt.Fatalf("after entry %d %d bytes are held, of %d", at, used, a.budget.limit)
	}
}

func checkTransaction(rt *rapid.T, txn *Transaction, log []event, i int) {
	rt.Helper()
	e := log[i]
	start, prepared := e.at, e.cmd.Index(0).Key() == "commitTransaction"
	var size int64
	parts := 0
	for j := i; j >= 0; j-- {
		if log[j].chain == e.chain && (e.chain != 0 || j == i) {
			start = log[j].at
			if array, err := log[j].cmd.LookupErr("applyOps"); err == nil {
				size += int64(len(array.Value))
				parts++
			}
		}
	}
	if txn.OpTime != optime(e.at) || txn.Start != optime(start) || int64(txn.Wall) != wallOf(e.at) ||
		txn.Prepared != prepared || txn.Bytes != size || txn.Parts != parts || txn.TxnNumber != e.number {
		rt.Fatalf("entry %d: transaction %+v, want start %d, prepared %v, %d bytes in %d parts", e.at, txn, start, prepared, size, parts)
	}
	if prepared != (oplog.CompareTimestamps(txn.CommitTimestamp, optime(0).TS) > 0) {
		rt.Fatalf("entry %d: commit timestamp %v", e.at, txn.CommitTimestamp)
	}
}
