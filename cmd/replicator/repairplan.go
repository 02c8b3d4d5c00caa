package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/verify"
	"github.com/oplogrep/replicator/verify/standing"
)

// repairWork lists the documents to repair.
type repairWork struct {
	// whole is a collection to be copied again, empty for none.
	whole string
	list  []*namespaceWork
	// others are differences that a repair of documents does not remove.
	others []otherWork
	// unlisted counts differences of which is not known where they are.
	unlisted int64
	// stored means that they are those that the link has stored: they stay until a later comparison.
	stored bool
}

// namespaceWork are documents of a collection.
type namespaceWork struct {
	// target is empty if it is not known.
	source, target string
	ids            [][]byte
	isRange        bool
	requests       int
}

// otherWork is a difference that a repair of documents does not remove.
type otherWork struct {
	text, source string
	kind         verify.Kind
	what         string
}

const (
	// mostLine is how long a line of a report may be.
	mostLine = 64 << 20
	// mostDocuments is how many documents of a collection are repaired one by one.
	mostDocuments = 100_000
	// mostOthers is how many other differences are named.
	mostOthers = 50
)

// remedy says what removes the difference.
func (o *otherWork) remedy(link string) string {
	source := oplog.Namespace(o.source)
	if source.IsBuckets() {
		source = source.Series()
	}
	again := "replicator resync --link " + link + " --namespace " + string(source)
	switch {
	case o.kind == verify.OfView:
		return "drop the view on the target and create it as on the source"
	case o.kind == verify.OfCollection && o.what == "extra":
		return "the source does not have it: look where it comes from, and drop it on the target"
	case o.kind == verify.OfIndex && o.what == "extra":
		return "drop the index on the target, or copy the collection again: " + again
	}
	return "copy the collection again: " + again
}

// readRepairs reads a report.
func readRepairs(name string) (*repairWork, error) {
	in := io.Reader(os.Stdin)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, &cli.Error{Err: fmt.Errorf("--from: %w", err), Code: cli.ExitBadInput}
		}
		defer func() { _ = f.Close() }() // it was read
		in = f
	}
	w, err := parseRepairs(in)
	if err != nil {
		return nil, &cli.Error{Err: fmt.Errorf("--from %s: %w", name, err), Code: cli.ExitBadInput, Hint: "It has to be what replicator verify --json has printed."}
	}
	return w, nil
}

// parseRepairs reads the lines of a report.
func parseRepairs(in io.Reader) (*repairWork, error) {
	w := &repairWork{}
	known, seen := map[string]*namespaceWork{}, map[string]bool{}
	complete := false
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, mostLine)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var d verify.Difference
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		switch d.Kind {
		case "summary":
			complete = true
		case verify.Missing, verify.Extra, verify.Differs:
			if err := w.document(&d, known, seen); err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
		case verify.Order, verify.OfCollection, verify.OfOption, verify.OfIndex, verify.OfView:
			w.other(&d, seen)
		default:
			return nil, fmt.Errorf("line %d: a difference of the kind %q is not known", n, d.Kind)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read it: %w", err)
	}
	if !complete && len(seen) == 0 {
		return nil, errors.New("it has no difference, nor the summary with which a complete report ends")
	}
	return w, nil
}

// verifiedRepairs lists the documents that the stored verification of a link has found different.
func verifiedRepairs(st *standing.Standing) *repairWork {
	w := &repairWork{stored: true}
	known, seen := map[string]*namespaceWork{}, map[string]bool{}
	w.unlisted = st.Differences
	for i := range st.Differing {
		c := &st.Differing[i]
		for _, f := range c.Found {
			d := verify.Difference{Kind: verify.Kind(f.Kind), NS: c.NS, SourceNS: c.SourceNS, ID: json.RawMessage(f.ID), Name: f.Name, What: f.What}
			switch d.Kind {
			case verify.Missing, verify.Extra, verify.Differs:
				id, err := verify.ReadIDText(f.ID)
				if err != nil {
					continue // it is cut
				}
				if d.IDBSON = request.AppendID(id); w.document(&d, known, seen) != nil {
					continue
				}
			case verify.Order, verify.OfCollection, verify.OfOption, verify.OfIndex, verify.OfView:
				w.other(&d, seen)
			}
			w.unlisted--
		}
	}
	return w
}

// document adds the difference of a document.
func (w *repairWork) document(d *verify.Difference, known map[string]*namespaceWork, seen map[string]bool) error {
	if d.NS == "" || d.SourceNS == "" {
		return errors.New("a difference without its namespaces")
	}
	if _, err := request.ReadID(d.IDBSON); err != nil {
		return fmt.Errorf("idBSON: %w", err)
	}
	key := string(d.SourceNS) + "\x00" + string(d.IDBSON)
	if seen[key] {
		return nil // a verification that began again names it twice
	}
	seen[key] = true
	n := known[string(d.SourceNS)]
	if n == nil {
		n = &namespaceWork{source: string(d.SourceNS), target: string(d.NS)}
		known[n.source] = n
		w.list = append(w.list, n)
	}
	n.ids = append(n.ids, d.IDBSON)
	return nil
}

// other adds another difference, of each collection one of a kind.
func (w *repairWork) other(d *verify.Difference, seen map[string]bool) {
	key := fmt.Sprint(d.SourceNS, "\x00", d.Kind, "\x00", d.Name)
	if seen[key] || len(w.others) == mostOthers {
		return
	}
	seen[key] = true
	w.others = append(w.others, otherWork{text: differenceText(d), source: string(d.SourceNS), kind: d.Kind, what: d.What})
}

// requests returns the requests for the documents. Each has a few hundred of them.
func (w *repairWork) requests() ([]request.RepairArgs, error) {
	const overhead = 8 // of an _id in JSON, in bytes
	var all []request.RepairArgs
	for _, n := range w.list {
		if len(n.ids) > mostDocuments {
			return nil, fmt.Errorf("%s has %d documents that differ, more than %d: copying it again is faster: replicator resync --namespace %s", n.source, len(n.ids), mostDocuments, n.source)
		}
		empty := request.RepairArgs{Namespace: n.source, Target: n.target}
		if n.isRange {
			empty.From, empty.To = n.ids[0], n.ids[1]
			all, n.requests = append(all, empty), 1
			continue
		}
		room := request.MostRepairBytes - 2*len(n.source) - 2*len(n.target) - 100
		now, size := empty, 0
		given := n.ids
		n.ids = nil
		for _, id := range given {
			bytes := (len(id)+2)/3*4 + overhead
			if bytes > room { // The others can be repaired all the same.
				w.tooLong(n.source, len(id))
				continue
			}
			if size+bytes > room {
				all, now, size = append(all, now), empty, 0
				n.requests++
			}
			now.IDs, n.ids = append(now.IDs, id), append(n.ids, id)
			size += bytes
		}
		if len(now.IDs) > 0 {
			all = append(all, now)
			n.requests++
		}
	}
	return all, nil
}

// tooLong adds a document whose _id is too much for a request, the first one of each collection.
func (w *repairWork) tooLong(source string, bytes int) {
	o := otherWork{source: source, kind: verify.Differs, what: "too long"}
	is := func(other otherWork) bool {
		return other.source == source && other.kind == o.kind && other.what == o.what
	}
	if slices.ContainsFunc(w.others, is) || len(w.others) == mostOthers {
		return
	}
	o.text = fmt.Sprintf("%s: an _id of %d bytes, which is too much for a request", source, bytes)
	w.others = append(w.others, o)
}
