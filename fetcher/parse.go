package fetcher

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/oplogrep/replicator/oplog"
)

const (
	// pieceEntries is how many entries of a reply one goroutine parses at a time: some
	// 0.3 ms of work, so that a piece is worth a goroutine.
	pieceEntries = 1024
	// leastEntry is the size of the smallest entries that are usual, in bytes.
	leastEntry = 100
	// maxParsers limits the goroutines that parse a reply. It is parsed in less time than
	// the source takes for the next one by then.
	maxParsers = 4
)

// part is the result of parsing a piece: the entries before the one at end, and the error
// of that one, nil if there is none.
type part struct {
	end int
	err error
}

// entries parses the documents except the first skip. They must ascend, and all come
// after the optime after. A large reply is parsed by several goroutines, piece by piece;
// the results are checked in the order of the oplog, so that the error is that of the
// first document at fault.
func (p *page) entries(skip int, after oplog.OpTime) ([]oplog.Entry, error) {
	if p.n <= skip {
		return nil, nil
	}
	list := make([]oplog.Entry, p.n)
	var few [1]part // so that a small reply does not allocate it
	parts := few[:]
	if len(p.pieces) > len(few) {
		parts = make([]part, len(p.pieces))
	}
	share(len(parts), func(k int) { parts[k] = p.parse(list, k, skip) })
	for k, part := range parts {
		first := max(k*pieceEntries, skip)
		if part.end > first {
			if err := inOrder(list[first].OpTime, after); err != nil {
				return nil, err
			}
			after = list[part.end-1].OpTime
		}
		if part.err != nil {
			return nil, part.err
		}
	}
	return list[skip:], nil
}

// parse parses piece k into its place in list.
func (p *page) parse(list []oplog.Entry, k, skip int) part {
	docs := p.pieces[k]
	for i := k * pieceEntries; i < min((k+1)*pieceEntries, p.n); i++ {
		docs.Next() // it did so before
		if i < skip {
			continue
		}
		if err := list[i].Parse(docs.Value); err != nil {
			return part{i, err}
		}
		if i > max(k*pieceEntries, skip) {
			if err := inOrder(list[i].OpTime, list[i-1].OpTime); err != nil {
				return part{i, err}
			}
		}
	}
	return part{end: min((k+1)*pieceEntries, p.n)}
}

// share calls do with 0 to n-1, each once, in several goroutines if there are processors
// for them, and returns when all calls have.
func share(n int, do func(k int)) {
	var next atomic.Int64
	work := func() {
		for k := int(next.Add(1)) - 1; k < n; k = int(next.Add(1)) - 1 {
			do(k)
		}
	}
	var others sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0), maxParsers) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
}

// inOrder returns an error unless the entry at comes after the entry after.
func inOrder(at, after oplog.OpTime) error {
	if oplog.CompareTimestamps(at.TS, after.TS) <= 0 || regresses(at.Term, after.Term) {
		return fmt.Errorf("%w: %s comes after %s", ErrOutOfOrder, at, after)
	}
	return nil
}

// regresses reports whether a term is older than that of the entry before.
func regresses(term, before int64) bool {
	return term < before && term != oplog.UninitializedTerm
}
